"""Where walks have been: the sparse features Psi of RWGNK and of graph random features.

Shapes: L nodes, T steps of a walk, E pairs of nodes that have met, C columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Folded
from .csr import SparseMatrix
from .edges import connected_components
from .walks import Walks

_VISITS = 1 << 23  # that are counted at a time


class Visits:
    """Where walks have been, as one sparse pattern with a value for every step.

    `entries` (T + 1, E): how many of the W walks from node i were at node j at step t; with
    `unbiased`, visits count with their importance, and step t over W is Adj^t on average. The
    features Psi = sum_t coefficients[t] step_t / W have values (..., E), linear in the coefficients
    (..., T + 1).
    """

    def __init__(self, pattern: SparseMatrix, entries: Tensor, num_walks: int):
        self.pattern = pattern
        self.entries = entries
        self.num_walks = num_walks

    @classmethod
    def of(cls, walks: Walks, unbiased: bool = False) -> Visits:
        """Some nodes at a time: sorting all visits of a large graph would take many times more
        memory than they do."""
        n, w, steps = walks.nodes.shape
        rows = max(1, _VISITS // (w * steps))
        parts = [_count(walks[i : i + rows], n, unbiased) for i in range(0, n, rows)]
        column, degree, entries = (torch.cat(part, -1) for part in zip(*parts, strict=True))
        starts = F.pad(degree.cumsum(0), (1, 0))
        return cls(SparseMatrix.from_sorted(starts, column, (n, n)), entries, w)

    @property
    def steps(self) -> int:
        return len(self.entries) - 1

    @cached_property
    def components(self) -> Tensor:
        """Parts of the graph, (L,), between which no walk has gone."""
        return connected_components(self.pattern.row, self.pattern.column, self.pattern.shape[0])

    def values(self, coefficients: Tensor) -> Tensor:
        return _Combination.apply(coefficients / self.num_walks, self.entries)

    def read(self, values: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        """Psi x, for values in both orders of the entries."""
        return self.pattern.product(values, x, transposed)

    def write(self, values: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        """Psi^T x."""
        return self.pattern.mT.product(transposed, x, values)

    def rows(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Rows of Psi, dense: (..., stop - start, L)."""
        n, starts = self.pattern.shape[1], self.pattern.starts[start : stop + 1].long()
        row = torch.arange(stop - start, device=starts.device).repeat_interleave(starts.diff())
        inside = slice(int(starts[0]), int(starts[-1]))
        place = row * n + self.pattern.column[inside]
        slab = values.new_zeros(*values.shape[:-1], (stop - start) * n)
        return slab.index_add(-1, place, values[..., inside]).unflatten(-1, (stop - start, n))


def _count(walks: Walks, num_nodes: int, unbiased: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes that were visited, for one starting node after the other; how many of them there are
    for each; and the visits by step, (T + 1, visited)."""
    rows, w, steps = walks.nodes.shape
    node = walks.nodes.flatten()
    seen = (node >= 0).nonzero().squeeze(-1)
    pairs = seen // (w * steps) * num_nodes + node[seen]
    pairs, place = torch.unique(pairs, return_inverse=True)
    if unbiased:
        share, kept = walks.importance().flatten()[seen], torch.float64
    else:
        share = torch.ones(len(seen), dtype=torch.int32, device=node.device)
        kept = torch.uint8 if w < 256 else torch.int32
    entries = torch.zeros(steps * len(pairs), dtype=share.dtype, device=node.device)
    entries.index_add_(0, seen % steps * len(pairs) + place, share)
    degree = torch.bincount(pairs // num_nodes, minlength=rows)
    return (pairs % num_nodes).to(torch.int32), degree, entries.reshape(steps, -1).to(kept)


class _Combination(torch.autograd.Function):
    """sum_t coefficients[..., t] entries[t] for small integers: (..., S), (S, E) -> (..., E).

    They become real numbers a step at a time, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, entries: Tensor) -> Tensor:
        ctx.save_for_backward(entries)
        result = coefficients.new_zeros(*coefficients.shape[:-1], entries.shape[1])
        for t, step in enumerate(entries):
            result.addcmul_(coefficients[..., t, None], step.to(result.dtype))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,), (entries,) = grads, ctx.saved_tensors
        return torch.stack([grad @ step.to(grad.dtype) for step in entries], -1), None


class Features:
    """Psi = diag(scale) psi, its values (..., E) in both orders of the entries."""

    def __init__(self, visits: Visits, coefficients: Tensor):
        self.visits = visits
        self.values = visits.values(coefficients)
        self.transposed = visits.pattern.transposed(self.values)
        self.scale: Tensor | None = None  # (..., L)

    def read(self, x: Tensor, folded: Folded | None = None) -> Tensor:
        """Psi x; `folded` says which of the leading dims x has."""
        values, transposed, scale = self._folded(folded)
        result = self.visits.read(values, transposed, x)
        return result if scale is None else scale[..., None] * result

    def write(self, x: Tensor, folded: Folded | None = None) -> Tensor:
        """Psi^T x."""
        values, transposed, scale = self._folded(folded)
        return self.visits.write(values, transposed, x if scale is None else scale[..., None] * x)

    def _folded(self, folded: Folded | None) -> tuple[Tensor, Tensor, Tensor | None]:
        if folded is None:
            return self.values, self.transposed, self.scale
        values, transposed = (folded.values(v, own_dims=1) for v in (self.values, self.transposed))
        return values, transposed, None if self.scale is None else folded.values(self.scale, 1)

    def scaled_values(self) -> Tensor:
        """Those of Psi itself."""
        if self.scale is None:
            return self.values
        return self.values * self.scale.index_select(-1, self.visits.pattern.row)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of Psi, dense: (..., stop - start, L)."""
        slab = self.visits.rows(self.values, start, stop)
        return slab if self.scale is None else self.scale[..., start:stop, None] * slab

    def dots(self, row: Tensor, column: Tensor) -> Tensor:
        """Psi[row] . Psi[column] for pairs of nodes, some pairs at a time: (..., P)."""
        dots = self.visits.pattern.row_dots(self.values, row, column)
        if self.scale is None:
            return dots
        return dots * self.scale[..., row] * self.scale[..., column]


def feature_product(left: Features, right: Features, x: Tensor) -> Tensor:
    """Phi Psi^T x."""
    folded = Folded(x.to(left.values.dtype), left.values.shape[:-1])
    result = left.read(right.write(folded.columns, folded), folded)
    return folded.unfold(result).to(x.dtype)


def dense_features(walks: Walks, coefficients: Tensor, unbiased: bool = False) -> Tensor:
    """Psi, (..., L, L), visit by visit: the average over walks of coefficients[t] at step t."""
    n, w, _ = walks.nodes.shape
    share = coefficients[..., None, None, :] / w
    if unbiased:
        share = share * walks.importance().to(share.dtype)
    share = share.expand(*share.shape[:-3], *walks.nodes.shape)
    there = F.one_hot(walks.nodes.long() + 1, n + 1)[..., 1:].to(share.dtype)
    return torch.einsum("...lwt,lwtn->...ln", share, there)
