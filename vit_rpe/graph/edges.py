"""Graphs as PyG gives them: `edge_index` (2, E) and `edge_weight` (E,), checked and put in order.

Here a graph is looked at, values and all: what is wrong with it is said once, by name. Masks are
made of what these functions return.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.masks.base import as_length


def as_graph(
    edge_index: Tensor,
    num_nodes: int | None = None,
    edge_weight: Tensor | None = None,
    *,
    undirected: bool = True,
    nonnegative: bool = True,
    learnable: bool = False,
    name: str = "edge_index",
) -> int:
    """The number of nodes of a graph whose edges and weights are sound, else a ValueError.

    Without `num_nodes` the last node is the largest index, as in PyG. An `undirected` graph has
    every edge in both directions, with one weight. Weights that want a gradient are refused unless
    they are `learnable`: a gradient must not be lost without a word. Errors call the edges `name`.
    """
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
        if edge_weight.requires_grad and torch.is_grad_enabled() and not learnable:
            raise ValueError(
                "edge_weight requires a gradient, but this mask passes none to the weights of "
                "edges: detach it, or use TreeExponential, which learns the lengths of edges"
            )
    if undirected:
        _check_undirected(edge_index, edge_weight, num_nodes)
    return num_nodes


def _check_index(edge_index: Tensor, name: str) -> None:
    if not isinstance(edge_index, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(edge_index).__name__}")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError(
            f"{name} must be int64 of shape (2, E), "
            f"got {edge_index.dtype} {tuple(edge_index.shape)}"
        )


def as_count(value: int, name: str, least: int | None = None) -> int:
    """A whole number, at least `least`, else a ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def as_probability(value: float, name: str) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability, from 0 to 1, got {value!r}")
    return float(value)


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


def _check_undirected(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> None:
    """Each edge has its counterpart: the graph equals its own transpose."""
    key, weight = coalesce(edge_index, edge_weight, num_nodes)
    mirrored, order = (key % num_nodes * num_nodes + key // num_nodes).sort()
    here = torch.searchsorted(mirrored, key).clamp(max=max(len(key) - 1, 0))
    alone = mirrored[here] != key
    if alone.any():
        i, j = divmod(int(key[alone.nonzero()[0]]), num_nodes)
        raise ValueError(
            "edge_index must hold every edge in both directions (an undirected graph), "
            f"got edge ({i}, {j}) without ({j}, {i})"
        )
    other = weight[order][here]
    uneven = (weight - other).abs() > 1e-6 * weight.abs()
    if uneven.any():
        place = uneven.nonzero()[0]
        i, j = divmod(int(key[place]), num_nodes)
        raise ValueError(
            "edge_weight must be the same in both directions, "
            f"got {float(weight[place])} for ({i}, {j}) and {float(other[place])} for ({j}, {i})"
        )


def coalesce(
    edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """One entry for each pair of nodes: sorted keys `i * num_nodes + j`, and the sum of weights."""
    weight = edge_weights(edge_index, edge_weight).detach().double()
    key, place = torch.unique(edge_index[0] * num_nodes + edge_index[1], return_inverse=True)
    return key, weight.new_zeros(len(key)).index_add_(0, place, weight)


def connected_components(row: Tensor, column: Tensor, num_nodes: int) -> Tensor:
    """The least node of the component that each node is in, (L,), for edges row - column.

    O(edges) a round: what the two ends of an edge point to points to the lesser of the two, and
    every node to where its node points. The rounds are about as many as a path can be halved.
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


def edge_weights(edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """The weights; 1 where none are given."""
    if edge_weight is None:
        return torch.ones(edge_index.shape[1], dtype=torch.float64, device=edge_index.device)
    return edge_weight


def row_starts(row: Tensor, num_rows: int) -> Tensor:
    """Where each row begins in a sorted list of row numbers, (num_rows + 1,)."""
    counts = torch.bincount(row, minlength=num_rows)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))
