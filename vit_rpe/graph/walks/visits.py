"""The nodes that walks have visited: sparse features Psi of RWGNK and graph random features.

Shapes: L nodes, T steps of a walk, E pairs of nodes that have met, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks.helpers import Folded, SparseMatrix

from ..edges import connected_components
from .walks import Walks

_VISITS = 1 << 23  # counted at a time


class Visits:
    """The nodes that walks have visited, as one sparse pattern with a value for every step.

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
        """Count the visits of some nodes at a time: sorting all at once takes too much memory."""
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
        """Parts of the graph, one number per node (L,), between which no walk has gone."""
        return connected_components(self.pattern.row, self.pattern.column, self.pattern.shape[0])

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Lengths of consecutive parts of the nodes between which no walk has gone."""
        return tuple(self.pattern.parts().tolist())

    def values(self, coefficients: Tensor) -> Tensor:
        return _Combination.apply(coefficients / self.num_walks, self.entries)

    def read(self, values: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        """Multiply Psi x, for values in both orders of the entries."""
        return self.pattern.product(values, x, transposed)

    def write(self, values: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        """Multiply Psi^T x."""
        return self.pattern.mT.product(transposed, x, values)

    def rows(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Form rows of Psi, dense: (..., stop - start, L)."""
        n, starts = self.pattern.shape[1], self.pattern.starts[start : stop + 1].long()
        row = torch.arange(stop - start, device=starts.device).repeat_interleave(starts.diff())
        inside = slice(int(starts[0]), int(starts[-1]))
        position = row * n + self.pattern.column[inside]
        slab = values.new_zeros(*values.shape[:-1], (stop - start) * n)
        return slab.index_add(-1, position, values[..., inside]).unflatten(-1, (stop - start, n))


def _count(walks: Walks, num_nodes: int, unbiased: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Count visits: return the nodes visited from each start, their number, and visits by step.

    The nodes are listed start by start, (V,); the visits are (T + 1, V).
    """
    rows, w, steps = walks.nodes.shape
    node = walks.nodes.flatten()
    seen = (node >= 0).nonzero().squeeze(-1)
    pairs = seen // (w * steps) * num_nodes + node[seen]
    pairs, pair = torch.unique(pairs, return_inverse=True)
    if unbiased:
        share, kept = walks.importance().flatten()[seen], torch.float64
    else:
        share = torch.ones(len(seen), dtype=torch.int32, device=node.device)
        kept = torch.uint8 if w < 256 else torch.int32
    entries = torch.zeros(steps * len(pairs), dtype=share.dtype, device=node.device)
    entries.index_add_(0, seen % steps * len(pairs) + pair, share)
    degree = torch.bincount(pairs // num_nodes, minlength=rows)
    return (pairs % num_nodes).to(torch.int32), degree, entries.reshape(steps, -1).to(kept)


class _Combination(torch.autograd.Function):
    """The sum of coefficients[..., t] entries[t] over t: (..., S), (S, E) -> (..., E).

    Entries are small integers, converted one step at a time, forward and backward.
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


class WalkFeatures:
    """The features Psi = diag(scale) psi, with values (..., E) in both orders of the entries."""

    def __init__(self, visits: Visits, coefficients: Tensor):
        self.visits = visits
        self.values = visits.values(coefficients)
        self.transposed = visits.pattern.transposed(self.values)
        self.scale: Tensor | None = None  # (..., L)

    def read(self, x: Tensor, folded: Folded | None = None) -> Tensor:
        """Multiply Psi x; `folded` says which of the leading dims x has."""
        values, transposed, scale = self._folded(folded)
        result = self.visits.read(values, transposed, x)
        return result if scale is None else scale[..., None] * result

    def write(self, x: Tensor, folded: Folded | None = None) -> Tensor:
        """Multiply Psi^T x."""
        values, transposed, scale = self._folded(folded)
        return self.visits.write(values, transposed, x if scale is None else scale[..., None] * x)

    def _folded(self, folded: Folded | None) -> tuple[Tensor, Tensor, Tensor | None]:
        if folded is None:
            return self.values, self.transposed, self.scale
        values, transposed = (folded.values(v, own_dims=1) for v in (self.values, self.transposed))
        return values, transposed, None if self.scale is None else folded.values(self.scale, 1)

    def scaled_values(self) -> Tensor:
        """Return the values of Psi, scale included."""
        if self.scale is None:
            return self.values
        return self.values * self.scale.index_select(-1, self.visits.pattern.row)

    def blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Form square blocks of Psi on the diagonal, padded by zeros: (..., B, n, n)."""
        return self.visits.pattern.blocks(self.scaled_values(), starts, sizes)

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows of Psi, dense: (..., stop - start, L)."""
        slab = self.visits.rows(self.values, start, stop)
        return slab if self.scale is None else self.scale[..., start:stop, None] * slab

    def dots(self, row: Tensor, column: Tensor) -> Tensor:
        """Compute Psi[row] . Psi[column] for pairs of nodes, some pairs at a time: (..., P)."""
        dots = self.visits.pattern.row_dots(self.values, row, column)
        if self.scale is None:
            return dots
        return dots * self.scale[..., row] * self.scale[..., column]


def feature_product(left: WalkFeatures, right: WalkFeatures, x: Tensor) -> Tensor:
    """Multiply Phi Psi^T x."""
    folded = Folded(x.to(left.values.dtype), left.values.shape[:-1])
    result = left.read(right.write(folded.columns, folded), folded)
    return folded.unfold(result).to(x.dtype)


def dense_features(walks: Walks, coefficients: Tensor, unbiased: bool = False) -> Tensor:
    """Form Psi (..., L, L) by definition: the mean over walks of coefficients[t] at step t."""
    n, w, _ = walks.nodes.shape
    share = coefficients[..., None, None, :] / w
    if unbiased:
        share = share * walks.importance().to(share.dtype)
    share = share.expand(*share.shape[:-3], *walks.nodes.shape)
    there = F.one_hot(walks.nodes.long() + 1, n + 1)[..., 1:].to(share.dtype)
    return torch.einsum("...lwt,lwtn->...ln", share, there)


def power_or_inf(size: Tensor, exponent: float) -> Tensor:
    """Raise size to a power to divide by; 0 gives infinity, so that canceled visits leave 0."""
    return size.masked_fill(size == 0, torch.inf) ** exponent
