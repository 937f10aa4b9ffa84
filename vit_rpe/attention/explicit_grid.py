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

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz

from .native import native_ops
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

    bank = _bank(table, border, dtype)
    shape = (0 if border is None else border.prefix, table.grid[0], prod(table.grid[1:]))
    result: Any = _Attention.apply(*map(by_table, (q, k, v)), bank, shape, settings)
    result = result.reshape(*(lead[dim] for dim in order), *result.shape[-2:])
    return result.permute(*(order.index(dim) for dim in range(len(lead))), -2, -1)


class _Attention(torch.autograd.Function):
    """q, k (T, S, L, ...) and v (T, S, L, D), under the masks in a bank."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bank: Tensor,
        shape: tuple[int, int, int],
        settings: Settings,
    ) -> Tensor:
        phi_q, phi_k, values = _mapped(q, k, v, bank.dtype, settings)
        sums, total, absolute = _ops().explicit_grid(phi_q, phi_k, values, bank, *shape)
        if settings.floor:  # a matrix of rank one
            sums += settings.floor * values.sum(-2, keepdim=True)
            total, absolute = (x + settings.floor * q.shape[-2] for x in (total, absolute))
        if settings.divide:
            total = safe_denominator(total, total if settings.nonnegative else absolute)
            result = _tokens_first(sums.div_(total).to(v.dtype))
            ctx.save_for_backward(q, k, v, bank, result, total)
        else:
            result = torch.cat([sums, total], -1)
            ctx.save_for_backward(q, k, v, bank)
        ctx.shape, ctx.settings = shape, settings
        return result

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, bank, *quotient = ctx.saved_tensors
        settings: Settings = ctx.settings
        if settings.divide:
            result, denominator = quotient
            grad = grad / denominator
            grad_total = -(grad * result).sum(-1, keepdim=True)
        else:
            grad, grad_total = grad[..., :-1], grad[..., -1:]
        grad, grad_total = grad.to(bank.dtype), grad_total.to(bank.dtype).contiguous()
        with torch.enable_grad():
            raw = q.detach().requires_grad_(), k.detach().requires_grad_()
            phi_q, phi_k, values = _mapped(*raw, v, bank.dtype, settings)
        *dphi, dv, dbank = _ops().explicit_grid_backward(
            phi_q.detach(), phi_k.detach(), values, grad, grad_total, bank, *ctx.shape
        )
        if settings.floor:
            dv += settings.floor * grad.sum(-2, keepdim=True)
        dq, dk = torch.autograd.grad((phi_q, phi_k), raw, dphi)
        return dq, dk, dv.to(v.dtype), dbank, None, None


def _mapped(
    q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, settings: Settings
) -> tuple[Tensor, ...]:
    """phi(q), phi(k) and v as the kernel takes them."""
    if settings.features is not None:
        q, k = settings.features(q, k)
    return tuple(x.to(dtype) for x in (q, k, v))


def _tokens_first(x: Tensor) -> Tensor:
    """The same tensor (T, S, L, C), stored as (S, L, T, C): what a model reads next."""
    return x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)


def _bank(table: Toeplitz, border: Bordered | None, dtype: torch.dtype) -> Tensor:
    """The weights of each table's mask, (T, ...): the table, then row, column and corner.

    All axes of the table but the first are written out, so that a row of the mask is a window of
    it. With n places along the first axis and P in each slice of the grid,

        written[i', (j_1 - i_1 + n - 1) P + j'] = M[(i_1, i'), (j_1, j')].
    """
    d = len(table.grid)
    offsets = table.offsets.reshape(-1, *table.offsets.shape[-d:])
    for n in table.grid[1:]:
        offsets = offsets.unfold(1 - d, n, 1)  # windows come last, their keys in reverse order
    written = offsets.movedim(1, d).flip(list(range(d, 2 * d))).flatten(1)
    if border is None or border.prefix == 0:
        return written.to(dtype)
    p, parts = border.prefix, [written]
    for value, shape in ((border.row, (p,)), (border.column, (p,)), (border.corner, (p, p))):
        value = written.new_ones(shape) if value is None else value
        parts.append(value.expand(*table.lead, *shape).reshape(len(written), -1))
    return torch.cat([part.to(dtype) for part in parts], 1)


def _bank_bytes(mask: Toeplitz | Exponential, dtype: torch.dtype) -> int:
    places = prod(mask.grid[1:])
    return prod(mask.lead) * 2 * mask.grid[0] * places**2 * dtype.itemsize


def _ops() -> Any:
    ops = native_ops()
    assert ops is not None
    return ops
