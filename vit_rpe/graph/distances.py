"""Shortest paths, and masks f(dist(i, j)) on any graph, as matrices (paper, Sec. 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vit_rpe.extras import import_extra
from vit_rpe.masks import Dense

from .edges import Graph, as_graph


def shortest_paths(
    edge_index: Tensor | Graph,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int | None = None,
) -> Tensor:
    """Compute the lengths of all shortest paths, (L, L) float64, infinite between components.

    `edge_weight` are lengths, 1 by default; of parallel edges the shortest counts. Edges are
    followed from `edge_index[0]` to `edge_index[1]`. By scipy: O(L (E + L log L)).
    """
    graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes, undirected=False)
    sparse = import_extra("scipy.sparse", "graph", "shortest_paths")
    csgraph = import_extra("scipy.sparse.csgraph", "graph", "shortest_paths")
    n, (row, column) = graph.num_nodes, graph.edge_index
    weight = graph.weights.detach().double()
    key, position = torch.unique(row * n + column, return_inverse=True)
    shortest = weight.new_full((len(key),), torch.inf).scatter_reduce(0, position, weight, "amin")
    entries = (key // n).cpu().numpy(), (key % n).cpu().numpy()
    matrix = sparse.csr_array((shortest.cpu().numpy(), entries), shape=(n, n))
    lengths = csgraph.shortest_path(matrix, unweighted=graph.edge_weight is None)
    return torch.from_numpy(lengths).to(weight.device)


def shortest_path_mask(
    edge_index: Tensor | Graph,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int | None = None,
    f: Tensor | Callable[[Tensor], Tensor],
) -> Dense:
    """Make the mask `M[i, j] = f(dist(i, j))`, 0 where no path leads from i to j. O(L^2) and more.

    `f` is a function of a tensor of distances, or values (..., D) for the distances 0, 1, ... of
    an unweighted graph; both may be learnable.
    """
    graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes, undirected=False)
    distance = shortest_paths(graph)
    apart = torch.isinf(distance)
    distance = distance.masked_fill(apart, 0.0)
    if isinstance(f, Tensor):
        if graph.edge_weight is not None:
            raise ValueError("a table of values needs a graph without edge_weight; give a function")
        needed = int(distance.max()) + 1
        if f.ndim < 1 or f.shape[-1] < needed:
            raise ValueError(
                f"distances up to {needed - 1} need values of shape (..., {needed}) or more, "
                f"got {tuple(f.shape)}"
            )
        weights = f[..., distance.long()]
    elif not callable(f):
        raise ValueError(f"f must be a function or a real tensor, got {type(f).__name__}")
    else:
        weights = f(distance)
        if weights.shape[-2:] != distance.shape:
            raise ValueError(
                f"f must keep the shape {tuple(distance.shape)} of the distances, "
                f"got {tuple(weights.shape)}"
            )
    return Dense(weights.masked_fill(apart, 0.0))
