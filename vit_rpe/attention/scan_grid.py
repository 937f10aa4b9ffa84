"""The scan path on a CPU: explicit inside boxes of the grid, and compiled states between them.

Same numbers as `scan.py`, faster and in less memory: the states of one box at a time exist, and the
backward pass, written by hand, makes them again. The states are in `scan_grid.cpp`.

Shapes: T tables of R terms, S samples that share a table, L tokens, M features, C value columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit_rpe.masks import Exponential
from vit_rpe.masks.compose import total

from .explicit_grid import Settings, explicit_grid
from .native import compiled_ops
from .recompute import differentiable_once
from .tables import Tables, neighbours


def scan_grid(q: Tensor, k: Tensor, v: Tensor, mask: Exponential, blocks: Sequence[int]) -> Tensor:
    """`A v` in blocks of `blocks[0]` slices, each cut again along the next axis; v ends in ones."""
    near = _inside_boxes(q, k, v, mask, blocks)
    if not blocks:
        return near
    tables = Tables(q.shape[:-2], mask.lead)
    terms = mask.rates.shape[-2:]
    rates = mask.rates.expand(*mask.lead, *terms).reshape(-1, *terms).double()
    weights = mask.weights.expand(*mask.lead, mask.terms).reshape(-1, mask.terms).double()
    samples = (neighbours(tables.split(x)) for x in (q, k, v))
    far: Any = _BetweenBlocks.apply(*samples, rates, weights, list(_levels(mask, blocks)))
    return near + tables.join(far)


def state_bytes(mask: Exponential, blocks: Sequence[int], k: Tensor, v: Tensor) -> int:
    """What the states of the boxes at work take at most, in the backward pass."""
    most = 0
    for _, sides, axis, block, _ in _levels(mask, blocks):
        steps = -(-sides[axis] // block)
        most = max(most, (steps + 4) * prod(sides) // sides[axis])
    return most * k.shape[-1] * v.shape[-1] * v.element_size() * torch.get_num_threads()


# --- inside ------------------------------------------------------------------------------------


def _inside_boxes(
    q: Tensor, k: Tensor, v: Tensor, mask: Exponential, blocks: Sequence[int]
) -> Tensor:
    """Explicit attention of each box of the grid alone."""
    sides = (*blocks, *mask.grid[len(blocks) :])
    d = len(sides)
    order = sorted(range(d), key=lambda axis: -sides[axis])  # a long first axis: a short bank
    inside = Exponential(
        mask.rates[..., None, :, order],
        mask.weights[..., None, :],
        [sides[axis] for axis in order],
        [order.index(axis) for axis in mask.one_sided],
    )
    padding = [pad for n, b in zip(mask.grid, sides, strict=True) for pad in (-n % b, 0)]
    whole = " ".join(f"(n{axis} b{axis})" for axis in range(d))
    boxes = " ".join(f"n{axis}" for axis in range(d))
    places = " ".join(f"b{axis}" for axis in order)
    sizes = {f"b{axis}": side for axis, side in enumerate(sides)}
    sizes |= {f"n{axis}": -(-n // sides[axis]) for axis, n in enumerate(mask.grid)}

    def boxed(x: Tensor) -> Tensor:
        """(..., L, C) -> (..., boxes, tokens of a box, C); places beyond the grid are zeros."""
        x = F.pad(x.unflatten(-2, mask.grid), [0, 0, *reversed(padding)])
        return rearrange(x, f"... {whole} c -> ... ({boxes}) ({places}) c", **sizes)

    def unboxed(x: Tensor) -> Tensor:
        x = rearrange(x, f"... ({boxes}) ({places}) c -> ... {whole} c", **sizes)
        for axis, n in enumerate(mask.grid):
            x = x.narrow(axis - d - 1, 0, n)
        return x.flatten(-d - 1, -2)

    settings = Settings(nonnegative=True, divide=False)
    q, k, v = boxed(q), boxed(k), boxed(v[..., :-1])
    return unboxed(explicit_grid(q, k, v, inside, q.dtype, settings))


# --- between -----------------------------------------------------------------------------------

Level = tuple[tuple[int, ...], list[int], int, int, tuple[int, ...]]


def _levels(mask: Exponential, blocks: Sequence[int]) -> Iterator[Level]:
    """What is cut: the grid, sides of its boxes, the axis and block size of the cut."""
    sides = list(mask.grid)
    for axis, block in enumerate(blocks):
        yield mask.grid, list(sides), axis, block, mask.one_sided
        sides[axis] = block


class _BetweenBlocks(torch.autograd.Function):
    """q, k (T, S, L, M), v (T, S, L, C), rates (T, R, axes), weights (T, R) -> (T, S, L, C)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rates: Tensor,
        weights: Tensor,
        levels: list[Level],
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, rates, weights)
        ctx.levels = levels
        out = torch.zeros_like(v, memory_format=torch.contiguous_format)
        for level in levels:
            compiled_ops().scan_grid(out, q, k, v, rates, weights, *level)
        return out

    @staticmethod
    @differentiable_once
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        saved, grad = ctx.saved_tensors, neighbours(grad)
        parts = [compiled_ops().scan_grid_backward(grad, *saved, *level) for level in ctx.levels]
        return *map(total, zip(*parts, strict=True)), None
