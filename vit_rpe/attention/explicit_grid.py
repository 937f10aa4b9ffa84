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
from torch.autograd.function import once_differentiable

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz

from .native import native_ops
from .recompute import remade
from .reference import safe_denominator


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
    lead = q.shape[:-2]
    sizes = [1] * (len(lead) - len(table.lead)) + list(table.lead)
    own = [dim for dim, size in enumerate(sizes) if size > 1]
    shared = [dim for dim, size in enumerate(sizes) if size == 1]
    order = [*own, *shared]

    def by_table(x: Tensor) -> Tensor:
        tables, samples = (prod(lead[dim] for dim in dims) for dims in (own, shared))
        return x.permute(*order, -2, -1).reshape(tables, samples, *x.shape[-2:])

    borders = (None, None, None) if border is None else (border.row, border.column, border.corner)
    shape = _Shape(table.grid, 0 if border is None else border.prefix, dtype)
    result: Any = _Attention.apply(
        shape, settings, *map(by_table, (q, k, v)), table.offsets, *borders
    )
    result = result.reshape(*(lead[dim] for dim in order), *result.shape[-2:])
    return result.permute(*(order.index(dim) for dim in range(len(lead))), -2, -1)


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
        q, k, v, bank = _made(shape, settings, *leaves)
        sums, total, absolute = _ops().explicit_grid(q, k, v, bank, *shape.numbers)
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
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        shape, settings = ctx.shape, ctx.settings
        *leaves, result, denominator = ctx.saved_tensors
        grad = _neighbours(grad.to(shape.dtype))
        result = None if result is None else _neighbours(result.to(shape.dtype))

        def gradients(q: Tensor, k: Tensor, v: Tensor, bank: Tensor) -> Sequence[Tensor]:
            dq, dk, dv, dbank = _ops().explicit_grid_backward(
                q, k, v, grad, result, denominator, bank, *shape.numbers
            )
            if settings.floor:
                dv += settings.floor * (grad / denominator).sum(-2, keepdim=True)
            return dq, dk, dv, dbank

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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi(q), phi(k), v and the bank, as the kernel takes them."""
    if settings.features is not None:
        q, k = settings.features(q, k)
    dtype = shape.dtype
    return q.to(dtype), k.to(dtype), v.to(dtype), _bank(shape, offsets, *border)


def _tokens_first(x: Tensor) -> Tensor:
    """Room for a tensor (T, S, L, C) like x, stored as (S, L, T, C): what a model reads next."""
    tables, samples, length, channels = x.shape
    return x.new_empty(samples, length, tables, channels).permute(2, 0, 1, 3)


def _neighbours(x: Tensor) -> Tensor:
    """The same, with the numbers of a row next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _bank(shape: _Shape, offsets: Tensor, *border: Tensor | None) -> Tensor:
    """The weights of each table's mask, (T, ...): the table, then row, column and corner.

    All axes of the table but the first are written out, so that a row of the mask is a window of
    it. With n places along the first axis and P in each slice of the grid,

        written[i', (j_1 - i_1 + n - 1) P + j'] = M[(i_1, i'), (j_1, j')].
    """
    d, p = len(shape.grid), shape.prefix
    lead = offsets.shape[:-d]
    offsets = offsets.reshape(-1, *offsets.shape[-d:])
    for n in shape.grid[1:]:
        offsets = offsets.unfold(1 - d, n, 1)  # windows come last, their keys in reverse order
    parts = [offsets.movedim(1, d).flip(list(range(d, 2 * d))).flatten(1)]
    if p:
        for value, sides in zip(border, ((p,), (p,), (p, p)), strict=True):
            value = offsets.new_ones(sides) if value is None else value
            parts.append(value.expand(*lead, *sides).reshape(len(offsets), -1))
    return torch.cat([part.to(shape.dtype) for part in parts], 1)


def _bank_bytes(mask: Toeplitz | Exponential, dtype: torch.dtype) -> int:
    places = prod(mask.grid[1:])
    return prod(mask.lead) * 2 * mask.grid[0] * places**2 * dtype.itemsize


def _ops() -> Any:
    ops = native_ops()
    assert ops is not None
    return ops
