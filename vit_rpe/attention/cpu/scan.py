"""The scan path on a CPU: explicit inside boxes of the grid, and compiled states between them.

Same numbers as `paths/scan.py`, faster and in less memory: the states of one box at a time exist,
and the backward pass, written by hand, makes them again. The states are in `scan.cpp`.

Shapes: T tables of R terms, S samples that share a table, L tokens, M features, C value columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit_rpe.masks import Exponential, Mask
from vit_rpe.precision import without_autocast

from .. import structure
from ..paths.product import absolute_bound
from ..paths.recompute import recomputed
from ..paths.scan import TorchScan, scan
from ..plan import AttentionPlan, AttentionRequest
from ..tables import TableGroups
from .explicit import attend_on_grid, unavailable


class CpuScan(TorchScan):
    """Causal and Exponential masks, also as terms of a Sum."""

    name = "cpu"

    def supports(self, request: AttentionRequest) -> str | None:
        refusal = super().supports(request)
        if refusal is not None:
            return refusal
        shapes = [structure.scan_shape(mask) for mask in structure.scan_leaves(request.mask)]
        if all(shape is None for shape in shapes):
            return "has no states to scan: one product serves a mask of ones"
        if request.budget is not None:
            needed = self._state_bytes(request)
            if needed > request.budget:
                return f"needs {needed} bytes for its states, and the budget is {request.budget}"
        return unavailable(request)

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        # fast enough to be done again, and it would keep a dozen tensors
        return recomputed(self._attend, plan, request, q, k, v)

    def _attend(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        blocks = iter(plan.blocks)

        def leaf(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
            with without_autocast(q.device.type):
                return _sums(q, k, v, mask, next(blocks), plan.budget, request.nonnegative)

        def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
            return structure.term_sums(q, k, v, mask, leaf)

        features, floor = request.features, request.floor
        return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)

    def _state_bytes(self, request: AttentionRequest) -> int:
        """Bytes of the states of all boxes at work, at most, in the backward pass."""
        leaves = zip(structure.scan_leaves(request.mask), self.blocks(request), strict=True)
        cells = 0
        for mask, blocks in leaves:
            shape = structure.scan_shape(mask)
            if shape is not None:
                cells = max(cells, state_cells(shape[0], blocks))
        entries = request.num_features * (request.num_values + 1)
        return cells * entries * request.dtype.itemsize * torch.get_num_threads()


def _sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    blocks: tuple[int, ...],
    budget: int,
    nonnegative: bool,
) -> tuple[Tensor, Tensor]:
    """`A v` and a bound of the absolute row sums of A, for `A = M * (q k^T)`."""
    if structure.scan_shape(mask) is None:
        return scan(q, k, v, mask, blocks, budget, nonnegative)
    exponential = structure.as_exponential(mask, q)
    sums = scan_on_grid(q, k, v, exponential, blocks)
    return sums, sums[..., -1:].detach().abs() if nonnegative else absolute_bound(q, k, exponential)


def scan_on_grid(
    q: Tensor, k: Tensor, v: Tensor, mask: Exponential, blocks: Sequence[int]
) -> Tensor:
    """`A v` in blocks of `blocks[0]` slices, each cut again along the next axis; v ends in ones."""
    near = _inside_boxes(q, k, v, mask, blocks)
    if not blocks:
        return near
    groups = TableGroups(q.shape[:-2], mask.batch_shape)
    terms = mask.rates.shape[-2:]
    rates = mask.rates.expand(*mask.batch_shape, *terms).reshape(-1, *terms).double()
    weights = mask.weights.expand(*mask.batch_shape, mask.terms).reshape(-1, mask.terms).double()
    far = torch.ops.vit_rpe.scan_grid(
        *map(groups.split, (q, k, v)), rates, weights, mask.grid, blocks, mask.one_sided
    )
    return near + groups.join(far)


def state_cells(grid: Sequence[int], blocks: Sequence[int]) -> int:
    """Cells that have a state at once, at most, in the backward pass of one box."""
    sides, most = list(grid), 0
    for axis, block in enumerate(blocks):
        steps = -(-sides[axis] // block)
        most = max(most, (steps + 4) * prod(sides) // sides[axis])
        sides[axis] = block
    return most


def _inside_boxes(
    q: Tensor, k: Tensor, v: Tensor, mask: Exponential, blocks: Sequence[int]
) -> Tensor:
    """Explicit attention inside each box of the grid."""
    sides = (*blocks, *mask.grid[len(blocks) :])
    d = len(sides)
    order = sorted(range(d), key=lambda axis: -sides[axis])  # a long first axis: a small table
    inside = Exponential(
        mask.rates[..., None, :, order],
        mask.weights[..., None, :],
        [sides[axis] for axis in order],
        [order.index(axis) for axis in mask.one_sided],
    )
    padding = [pad for n, b in zip(mask.grid, sides, strict=True) for pad in (-n % b, 0)]
    whole = " ".join(f"(n{axis} b{axis})" for axis in range(d))
    boxes = " ".join(f"n{axis}" for axis in range(d))
    cells = " ".join(f"b{axis}" for axis in order)
    sizes = {f"b{axis}": side for axis, side in enumerate(sides)}
    sizes |= {f"n{axis}": -(-n // sides[axis]) for axis, n in enumerate(mask.grid)}

    def boxed(x: Tensor) -> Tensor:
        """(..., L, C) -> (..., boxes, tokens of a box, C); cells beyond the grid are zeros."""
        x = F.pad(x.unflatten(-2, mask.grid), [0, 0, *reversed(padding)])
        return rearrange(x, f"... {whole} c -> ... ({boxes}) ({cells}) c", **sizes)

    def unboxed(x: Tensor) -> Tensor:
        """The inverse of `boxed`."""
        x = rearrange(x, f"... ({boxes}) ({cells}) c -> ... {whole} c", **sizes)
        for axis, n in enumerate(mask.grid):
            x = x.narrow(axis - d - 1, 0, n)
        return x.flatten(-d - 1, -2)

    q, k, v = boxed(q), boxed(k), boxed(v[..., :-1])
    return unboxed(attend_on_grid(q, k, v, inside, q.dtype, nonnegative=True, divide=False))
