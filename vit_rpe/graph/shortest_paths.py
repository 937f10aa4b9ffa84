"""Masks f(dist(i, j)) on any graph (paper, Sec. 3.3), as matrices: for small graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vit_rpe.masks import Dense

from .edges import as_graph, edge_weights


def shortest_paths(
    edge_index: Tensor, num_nodes: int | None = None, edge_weight: Tensor | None = None
) -> Tensor:
    """The lengths of all shortest paths, (L, L) float64, infinite between components.

    `edge_weight` are lengths, 1 by default; of parallel edges the shortest counts. Edges are
    followed from `edge_index[0]` to `edge_index[1]`. By scipy: O(L (E + L log L)).
    """
    num_nodes = as_graph(edge_index, num_nodes, edge_weight, undirected=False)
    try:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "shortest paths need scipy: pip install vit_rpe[graph]"
        ) from error
    weight = edge_weights(edge_index, edge_weight).detach().double()
    key, place = torch.unique(edge_index[0] * num_nodes + edge_index[1], return_inverse=True)
    shortest = weight.new_full((len(key),), torch.inf).scatter_reduce(0, place, weight, "amin")
    entries = (key // num_nodes).cpu().numpy(), (key % num_nodes).cpu().numpy()
    graph = csr_array((shortest.cpu().numpy(), entries), shape=(num_nodes, num_nodes))
    lengths = shortest_path(graph, unweighted=edge_weight is None)
    return torch.from_numpy(lengths).to(edge_index.device)


def shortest_path_mask(
    edge_index: Tensor,
    f: Tensor | Callable[[Tensor], Tensor],
    num_nodes: int | None = None,
    edge_weight: Tensor | None = None,
) -> Dense:
    """`M[i, j] = f(dist(i, j))`, 0 where no path leads from i to j. O(L^2) and more.

    `f` is a function of a tensor of distances, or values (..., D) for the distances 0, 1, ... of
    an unweighted graph; both may be learnable.
    """
    distance = shortest_paths(edge_index, num_nodes, edge_weight)
    apart = torch.isinf(distance)
    distance = distance.masked_fill(apart, 0.0)
    if isinstance(f, Tensor):
        if edge_weight is not None:
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
