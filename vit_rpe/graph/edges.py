"""Graphs in PyG's format, `edge_index` (2, E) and `edge_weight` (E,), checked once.

Only these functions look for mistakes in a graph. They name them, and return a `Graph`, from which
masks are made without a second look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vit_rpe.masks.helpers import as_count, as_length


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph that `as_graph` has checked. Whatever takes an `edge_index` takes a `Graph`, too.

    `undirected` and `nonnegative` say which of the optional checks it has passed.
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    num_nodes: int
    undirected: bool = False
    nonnegative: bool = False

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def weights(self) -> Tensor:
        """The weights of the edges, (E,); 1 in float64 where none are given."""
        if self.edge_weight is not None:
            return self.edge_weight
        return torch.ones(self.num_edges, dtype=torch.float64, device=self.edge_index.device)


def as_graph(
    edge_index: Tensor | Graph,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int | None = None,
    undirected: bool = True,
    nonnegative: bool = True,
    learnable: bool = False,
    name: str = "edge_index",
) -> Graph:
    """Check edges and weights, and return them as a `Graph`; raise ValueError if they are wrong.

    A sparse matrix in the place of `edge_index` is PyG's `adj_t` (torch.sparse, or torch-sparse's
    SparseTensor): row i holds the edges that lead to node i, and its values are their weights.
    Without `num_nodes` the last node is the largest index, as in PyG. An `undirected` graph has
    every edge in both directions, with one weight. Weights that require a gradient are refused
    unless they are `learnable`: no gradient is lost silently. Errors call the edges `name`. A
    `Graph` passes through; only checks that it has not passed yet are made.
    """
    if is_adjacency(edge_index):
        edge_index, edge_weight, num_nodes = _of_adjacency(edge_index, edge_weight, num_nodes)
    if isinstance(edge_index, Graph):
        graph = _same_graph(edge_index, edge_weight, num_nodes)
        if nonnegative and not graph.nonnegative and graph.edge_weight is not None:
            _check_weight(graph.edge_weight, graph.num_edges, nonnegative)
    else:
        graph = _checked(edge_index, edge_weight, num_nodes, nonnegative, name)
    weight = graph.edge_weight
    if weight is not None and weight.requires_grad and torch.is_grad_enabled() and not learnable:
        raise ValueError(
            "edge_weight requires a gradient, but this mask passes none to the weights of "
            "edges: detach it, or use TreeExponential, which learns the lengths of edges"
        )
    if undirected and not graph.undirected:
        _check_undirected(graph)
    return Graph(
        graph.edge_index,
        weight,
        graph.num_nodes,
        undirected=undirected or graph.undirected,
        nonnegative=nonnegative or graph.nonnegative,
    )


def is_adjacency(edge_index: object) -> bool:
    """Whether this is a sparse matrix: torch's, or a SparseTensor."""
    if isinstance(edge_index, Tensor):
        return edge_index.layout != torch.strided
    return type(edge_index).__name__ == "SparseTensor"


def _of_adjacency(
    adj_t: Any, edge_weight: Tensor | None, num_nodes: int | None
) -> tuple[Tensor, Tensor | None, int]:
    """Turn a sparse matrix (target, source) into edges, weights and the number of nodes."""
    if edge_weight is not None:
        raise ValueError("a sparse adjacency matrix has its own weights, got edge_weight, too")
    if not isinstance(adj_t, Tensor):  # a SparseTensor
        rows, columns = adj_t.sparse_sizes()
        target, source, weight = adj_t.coo()
    else:
        if adj_t.ndim != 2:
            raise ValueError(f"a sparse adjacency matrix has two dims, got {tuple(adj_t.shape)}")
        rows, columns = adj_t.shape
        if adj_t.layout != torch.sparse_coo:
            adj_t = adj_t.to_sparse_coo()
        adj_t = adj_t.coalesce()
        (target, source), weight = adj_t.indices(), adj_t.values()
    if rows != columns:
        raise ValueError(
            f"a sparse adjacency matrix must be square, got ({rows}, {columns}): masks are for the "
            "nodes of one graph, not for bipartite ones"
        )
    if num_nodes is not None and num_nodes != rows:
        raise ValueError(f"the adjacency matrix has {rows} nodes, got num_nodes={num_nodes}")
    if weight is not None and not weight.is_floating_point():
        weight = weight.float()
    return torch.stack([source, target]).long(), weight, rows


def _same_graph(graph: Graph, edge_weight: Tensor | None, num_nodes: int | None) -> Graph:
    if edge_weight is not None and edge_weight is not graph.edge_weight:
        raise ValueError("a Graph has its own edge_weight, got another one")
    if num_nodes is not None and num_nodes != graph.num_nodes:
        raise ValueError(f"the Graph has {graph.num_nodes} nodes, got num_nodes={num_nodes}")
    return graph


def _checked(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    num_nodes: int | None,
    nonnegative: bool,
    name: str,
) -> Graph:
    _check_index(edge_index, name)
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    num_nodes = as_length(as_count(num_nodes, "num_nodes"))
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if outside.any():
        edge = int(outside.any(0).nonzero()[0])
        raise ValueError(
            f"{name}: edge {edge} joins {edge_index[:, edge].tolist()}, "
            f"but nodes go from 0 to {num_nodes - 1}"
        )
    if edge_weight is not None:
        _check_weight(edge_weight, edge_index.shape[1], nonnegative)
    return Graph(edge_index, edge_weight, num_nodes)


def _check_index(edge_index: Tensor, name: str) -> None:
    if not isinstance(edge_index, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(edge_index).__name__}")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError(
            f"{name} must be int64 of shape (2, E), "
            f"got {edge_index.dtype} {tuple(edge_index.shape)}"
        )


def _check_weight(edge_weight: Tensor, edges: int, nonnegative: bool) -> None:
    if not isinstance(edge_weight, Tensor):
        raise ValueError(f"edge_weight must be a tensor, got {type(edge_weight).__name__}")
    if tuple(edge_weight.shape) != (edges,) or not edge_weight.is_floating_point():
        raise ValueError(
            f"{edges} edges need a real edge_weight of shape ({edges},), "
            f"got {edge_weight.dtype} {tuple(edge_weight.shape)}"
        )
    wrong = ~torch.isfinite(edge_weight)
    if nonnegative:
        wrong |= edge_weight < 0
    if wrong.any():
        edge = int(wrong.nonzero()[0])
        wanted = "finite and not negative" if nonnegative else "finite"
        raise ValueError(
            f"edge_weight must be {wanted}, got {float(edge_weight[edge])} for edge {edge}"
        )


def _check_undirected(graph: Graph) -> None:
    """Raise ValueError unless the graph equals its own transpose, weights included."""
    n = graph.num_nodes
    key, weight = coalesce(graph)
    mirrored, order = (key % n * n + key // n).sort()
    here = torch.searchsorted(mirrored, key).clamp(max=max(len(key) - 1, 0))
    missing = mirrored[here] != key
    if missing.any():
        i, j = divmod(int(key[missing.nonzero()[0]]), n)
        raise ValueError(
            "edge_index must hold every edge in both directions (an undirected graph), "
            f"got edge ({i}, {j}) without ({j}, {i})"
        )
    other = weight[order][here]
    uneven = (weight - other).abs() > 1e-6 * weight.abs()
    if uneven.any():
        first = uneven.nonzero()[0]
        i, j = divmod(int(key[first]), n)
        raise ValueError(
            "edge_weight must be the same in both directions, "
            f"got {float(weight[first])} for ({i}, {j}) and {float(other[first])} for ({j}, {i})"
        )


def coalesce(graph: Graph) -> tuple[Tensor, Tensor]:
    """Return sorted keys `i * num_nodes + j` of all joined pairs, and the sum of their weights."""
    weight = graph.weights.detach().double()
    key = graph.edge_index[0] * graph.num_nodes + graph.edge_index[1]
    key, position = torch.unique(key, return_inverse=True)
    return key, weight.new_zeros(len(key)).index_add_(0, position, weight)


def connected_components(row: Tensor, column: Tensor, num_nodes: int) -> Tensor:
    """Find the smallest node of each node's component, (L,), for edges row - column.

    O(edges) a round: what the two ends of an edge point to points to the smaller of the two, and
    every node to where its node points. There are about as many rounds as a path can be halved.
    """
    least = torch.arange(num_nodes, device=row.device)
    row, column = row.long(), column.long()
    while True:
        here, there = least[row], least[column]
        lesser = torch.minimum(here, there)
        found = least.scatter_reduce(0, here, lesser, "amin")
        found = found.scatter_reduce(0, there, lesser, "amin")
        found = found[found]
        if found.equal(least):
            return least
        least = found
