"""The explicit path for masks on a grid, on a CPU: one pass over tiles that stay in its cache.

Same numbers as `explicit.py`, faster and in less memory: feature maps, prefix tokens, normaliser
and division are part of the pass, and nothing but q, k, v and the result is kept for the backward
pass, which is written by hand. With the weights A = S * M of a tile, S = q k^T, and G the gradient
of A v:

    dA = G v^T,   dM = dA * S,   dS = dA * M,   dq = dS k,   dk = dS^T q,   dv = A^T G

The tiles are in `explicit_grid.cpp`. Shapes: T tables, S samples that share a table, L tokens, M
features, D value channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz
from vit_rpe.masks.precision import in_function_transform

from .native import compiled_ops, native_ops
from .recompute import differentiable_once, remade
from .reference import safe_denominator
from .tables import Tables, neighbours


@dataclass(frozen=True)
class Settings:
    """What a call wants beside its tensors."""

    nonnegative: bool = False  # no negative feature or weight: absolute sums are the sums
    features: FeatureMap | None = None  # applied to q and k here, and again in the backward pass
    floor: float = 0.0  # added to every weight
    divide: bool = True  # by the sums of the rows; otherwise these are one more column


def fits(mask: Mask, q: Tensor, dtype: torch.dtype, budget: int | None = None) -> bool:
    """Whether this form can serve: on a CPU, for a mask on a grid, perhaps behind prefix tokens."""
    inner = mask.inner if isinstance(mask, Bordered) else mask
    return (
        isinstance(inner, Toeplitz | Exponential)
        and mask.lead == inner.lead
        and dtype in (torch.float32, torch.float64)
        and q.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not in_function_transform()
        and (budget is None or 3 * _bank_bytes(inner, dtype) <= budget)
        and native_ops() is not None
    )


def explicit_grid(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, dtype: torch.dtype, settings: Settings
) -> Tensor:
    """Masked attention (..., L, D), or `A v` and the sums of A's rows (..., L, D + 1), by `dtype`.

    Leading dims of q, k and v are equal; q and k are feature-mapped unless the settings name a map.
    """
    border, inner = (mask, mask.inner) if isinstance(mask, Bordered) else (None, mask)
    table = inner.toeplitz() if isinstance(inner, Exponential) else inner
    assert isinstance(table, Toeplitz)
    tables = Tables(q.shape[:-2], table.lead)
    borders = (None, None, None) if border is None else (border.row, border.column, border.corner)
    shape = _Shape(table.grid, 0 if border is None else border.prefix, dtype)
    samples = map(tables.split, (q, k, v))
    return tables.join(_Attention.apply(shape, settings, *samples, table.offsets, *borders))


@dataclass(frozen=True)
class _Shape:
    """What the kernel must know of a mask beside its weights, and in which precision it works."""

    grid: tuple[int, ...]
    prefix: int
    dtype: torch.dtype

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Prefix tokens, slices of the grid, places in a slice."""
        return self.prefix, self.grid[0], prod(self.grid[1:])


class _Attention(torch.autograd.Function):
    """q, k, v (T, S, L, ...) and the weights of masks: a table, row, column, corner of a border."""

    @staticmethod
    def forward(ctx: Any, shape: _Shape, settings: Settings, *leaves: Any) -> Tensor:
        q, k, v, *mask = _made(shape, settings, *leaves)
        sums, total, absolute = compiled_ops().explicit_grid(q, k, v, *mask, *shape.numbers)
        if settings.floor:  # a matrix of rank one
            sums += settings.floor * v.sum(-2, keepdim=True)
            total, absolute = (x + settings.floor * q.shape[-2] for x in (total, absolute))
        ctx.shape, ctx.settings = shape, settings
        if not settings.divide:
            ctx.save_for_backward(*leaves, None, None)
            return torch.cat([sums, total], -1)
        total = safe_denominator(total, total if settings.nonnegative else absolute)
        result = torch.div(sums, total, out=_tokens_first(sums)).to(leaves[2].dtype)
        ctx.save_for_backward(*leaves, result, total)
        return result

    @staticmethod
    @differentiable_once
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        shape, settings = ctx.shape, ctx.settings
        *leaves, result, denominator = ctx.saved_tensors
        grad = neighbours(grad.to(shape.dtype))
        result = None if result is None else neighbours(result.to(shape.dtype))

        def gradients(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Sequence[Tensor]:
            dq, dk, dv, *dmask = compiled_ops().explicit_grid_backward(
                q, k, v, grad, result, denominator, *mask, *shape.numbers
            )
            if settings.floor:
                dv += settings.floor * (grad / denominator).sum(-2, keepdim=True)
            return dq, dk, dv, *dmask

        make = partial(_made, shape, settings)
        return None, None, *remade(make, gradients, leaves, ctx.needs_input_grad[2:])


def _made(
    shape: _Shape,
    settings: Settings,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    *border: Tensor | None,
) -> tuple[Tensor, ...]:
    """phi(q), phi(k), v, and the weights of table and border, as the kernel takes them."""
    if settings.features is not None:
        q, k = settings.features(q, k)
    lead = offsets.shape[: -len(shape.grid)]
    made = q, k, v, _bank(offsets, shape.grid), _border(border, shape.prefix, lead, q.device)
    return tuple(x.to(shape.dtype) for x in made)


def _tokens_first(x: Tensor) -> Tensor:
    """An empty tensor (T, S, L, C) like x, stored as (S, L, T, C): what a model reads next.

    Not a view of another: autograd forbids to change the view that a custom function returns.
    """
    tables, samples, length, channels = x.shape
    strides = (channels, length * tables * channels, tables * channels, 1)
    return x.new_empty_strided(x.shape, strides)


def _bank(offsets: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The tables with all axes but the first written out, (T, P (2 n - 1) P).

    A row of the mask is a window of it: with n places along the first axis, and i' and j' counting
    the P places of a slice of the grid,

        bank[P - 1 - i', j_1 - i_1 + n - 1, j'] = M[(i_1, i'), (j_1, j')].
    """
    d = len(grid)
    # turned around, the table is indexed by key minus query, and windows run forward
    tables = offsets.reshape(-1, *offsets.shape[-d:]).flip(list(range(1, d + 1)))
    for n in grid[1:]:
        tables = tables.unfold(1 - d, n, 1)
    return tables.movedim(1, d).flatten(1)


def _border(
    parts: Sequence[Tensor | None], p: int, lead: torch.Size, device: torch.device
) -> Tensor:
    """Row, column and corner of the border of each table, (T, 2 p + p p)."""
    shapes = ((p,), (p,), (p, p))
    weights = [
        (torch.ones(shape, device=device) if part is None else part).expand(*lead, *shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat([x.reshape(prod(lead), -1) for x in weights], 1)


def _bank_bytes(mask: Toeplitz | Exponential, dtype: torch.dtype) -> int:
    places = prod(mask.grid[1:])
    return prod(mask.lead) * 2 * mask.grid[0] * places**2 * dtype.itemsize
