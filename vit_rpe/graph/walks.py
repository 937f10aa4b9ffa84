"""Random walks on graphs in plain torch, all nodes and walks at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .csr import SparseMatrix
from .edges import as_graph, edge_weights, row_starts


@dataclass(frozen=True)
class Walks:
    """W walks from each of L nodes: `nodes` (L, W, T + 1), -1 after a walk has ended.

    `weight` (L, W, T + 1) is the product of what the edges weigh over how likely they were taken:
    with it, visits at step t count the entries of Adj^t without bias (Reid et al. 2023).
    """

    nodes: Tensor
    weight: Tensor

    @property
    def num_nodes(self) -> int:
        return self.nodes.shape[0]

    @property
    def steps(self) -> int:
        """The number of steps T; a walk visits up to T + 1 nodes."""
        return self.nodes.shape[2] - 1


def random_walks(
    edge_index: Tensor,
    num_walks: int,
    length: int | None,
    num_nodes: int | None = None,
    *,
    edge_weight: Tensor | None = None,
    stop: float = 0.0,
    seed: int = 0,
) -> Walks:
    """Walks that leave a node along its edges with probabilities proportional to their weights.

    A walk ends after `length` edges, before any of them with probability `stop` (the paper's p),
    and where no edge leaves. `length=None` needs a `stop` above 0 and goes on until all have ended.
    The same seed gives the same walks on the same kind of device. Edges are followed from
    `edge_index[0]` to `edge_index[1]`, and need not come in both directions. O(L W) a step.
    """
    num_nodes = as_graph(edge_index, num_nodes, edge_weight, undirected=False)
    _check(num_walks, length, stop)
    device = edge_index.device
    generator = torch.Generator(device).manual_seed(seed)
    roads = _Roads(edge_index, edge_weights(edge_index, edge_weight), num_nodes)

    here = torch.arange(num_nodes, device=device).repeat_interleave(num_walks)
    weight = torch.ones(len(here), dtype=torch.float64, device=device)
    visited, weights = [here], [weight]
    while length is None or len(visited) <= length:
        draw = torch.rand(2, len(here), generator=generator, dtype=torch.float64, device=device)
        goes_on = (here >= 0) & (draw[0] >= stop)
        weight = weight * roads.total[here] / (1 - stop) if stop < 1 else weight
        here = torch.where(goes_on, roads.next(here, draw[1]), -1)
        if length is None and not (here >= 0).any():
            break
        visited.append(here)
        weights.append(weight.masked_fill(here < 0, 0.0))
        weight = weights[-1]
    shape = (num_nodes, num_walks, len(visited))
    return Walks(
        torch.stack(visited, -1).reshape(shape), torch.stack(weights, -1).float().reshape(shape)
    )


def _check(num_walks: int, length: int | None, stop: float) -> None:
    if num_walks < 1:
        raise ValueError(f"num_walks must be at least 1, got {num_walks}")
    if not 0 <= stop <= 1:
        raise ValueError(f"stop must be a probability, from 0 to 1, got {stop}")
    if length is None and stop == 0:
        raise ValueError("length=None needs a stop above 0, or walks would never end")
    if length is not None and length < 0:
        raise ValueError(f"length must be 0 or more edges, got {length}")


class _Roads:
    """Where one can go from each node, by inverse cumulative probabilities."""

    def __init__(self, edge_index: Tensor, weight: Tensor, num_nodes: int):
        passable = (weight > 0).nonzero().squeeze(-1)
        row, weight = edge_index[0, passable], weight[passable].double()
        order = torch.argsort(row, stable=True)
        row, self.target = row[order], edge_index[1, passable][order]
        starts = row_starts(row, num_nodes)
        self.first, self.last = starts[:-1], starts[1:] - 1
        self.total = weight.new_zeros(num_nodes).index_add_(0, row, weight[order])
        # every row adds 1, so that a row of tiny weights loses no digits beside large ones
        self.reached = (weight[order] / self.total[row]).cumsum(0)
        self.uniform = bool((weight == weight[:1]).all())

    def next(self, here: Tensor, draw: Tensor) -> Tensor:
        """The next node for uniform numbers `draw`; -1 from where no edge leaves."""
        first, last = self.first[here], self.last[here]
        if not len(self.target):
            return torch.full_like(here, -1)
        if self.uniform:
            place = first + (draw * (last - first + 1)).long()
        else:
            before = torch.where(first > 0, self.reached[(first - 1).clamp(min=0)], 0.0)
            until = self.reached[last.clamp(min=0)]
            place = torch.searchsorted(self.reached, before + draw * (until - before), right=True)
        place = torch.maximum(torch.minimum(place, last), first)
        stuck = last < first
        return self.target[place.masked_fill(stuck, 0)].masked_fill(stuck, -1)


class Visits:
    """Where walks have been, as one sparse pattern with a value for every step.

    `entries` (E, T + 1): how often, on average over the walks from node i, step t was at node j;
    with `unbiased`, visits count with their weights, and step t is Adj^t on average. The features
    Psi = sum_t coefficients[t] * step t have values (..., E): linear in coefficients (..., T + 1).
    """

    def __init__(self, walks: Walks, unbiased: bool = False):
        n, w, steps = walks.nodes.shape
        node = walks.nodes.flatten()
        seen = (node >= 0).nonzero().squeeze(-1)
        pairs, place = torch.unique(seen // (w * steps) * n + node[seen], return_inverse=True)
        share = walks.weight.flatten()[seen] if unbiased else torch.ones_like(seen)
        entries = torch.zeros(len(pairs) * steps, dtype=torch.float64, device=node.device)
        entries.index_add_(0, place * steps + seen % steps, share.double() / w)
        self.pattern = SparseMatrix(pairs // n, pairs % n, (n, n))
        self.entries = entries.reshape(-1, steps)

    def values(self, coefficients: Tensor) -> Tensor:
        return coefficients @ self.entries.to(coefficients.dtype).mT

    def read(self, values: Tensor, x: Tensor) -> Tensor:
        """Psi x."""
        return self.pattern.product(values, x)

    def write(self, values: Tensor, x: Tensor) -> Tensor:
        """Psi^T x."""
        return self.pattern.mT.product(values[..., self.pattern.mT.order], x)

    def rows(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Rows of Psi, dense: (..., stop - start, L)."""
        n = self.pattern.shape[1]
        inside = slice(*self.pattern.starts[[start, stop]].tolist())
        place = (self.pattern.row[inside] - start) * n + self.pattern.column[inside]
        slab = values.new_zeros(*values.shape[:-1], (stop - start) * n)
        return slab.index_add(-1, place, values[..., inside]).unflatten(-1, (stop - start, n))


def dense_features(walks: Walks, coefficients: Tensor, unbiased: bool = False) -> Tensor:
    """Psi, (..., L, L), visit by visit: the average over walks of coefficients[t] at step t."""
    n, w, _ = walks.nodes.shape
    weight = walks.weight if unbiased else torch.ones_like(walks.weight)
    share = coefficients[..., None, None, :] * weight.to(coefficients.dtype) / w
    there = torch.nn.functional.one_hot(walks.nodes + 1, n + 1)[..., 1:].to(share.dtype)
    return torch.einsum("...lwt,lwtn->...ln", share, there)
