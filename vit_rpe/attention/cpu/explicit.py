"""The explicit path for masks on a grid, on a CPU: one pass over tiles that stay in its cache.

Same numbers as `paths/explicit.py`, faster and in less memory: feature maps, prefix tokens,
normalizer and division are part of the pass, and only q, k, v and the result are kept for the
backward pass, which is written by hand. With the weights A = S * M of a tile, S = q k^T, and G the
gradient of A v:

    dA = G v^T,   dM = dA * S,   dS = dA * M,   dq = dS k,   dk = dS^T q,   dv = A^T G

The tiles are in `explicit.cpp`. Shapes: T tables, S samples that share a table, L tokens, M
features, D value channels; a grid of n slices of P cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Exponential, Mask, Toeplitz
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, explicit_cost
from ..paths.recompute import differentiable_once, gradients_by_recomputing
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import safe_denominator
from ..tables import TableGroups, border_weights
from . import build


class CpuExplicit:
    """Toeplitz and Exponential masks, perhaps behind prefix tokens and with token weights."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "cpu"

    def supports(self, request: AttentionRequest) -> str | None:
        refusal = no_table(request)
        if refusal is not None:
            return refusal
        if request.floor and structure.has_token_weights(request.mask):
            return "has no floor under token weights"
        if request.autocast == torch.bfloat16:
            return "computes in float32, and autocast asks for bfloat16"
        if request.budget is not None and 3 * table_bytes(request) > request.budget:
            return f"needs more than the budget of {request.budget} bytes for its table"
        return unavailable(request)

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        m, d = request.num_features, request.num_values + 1
        return explicit_cost(request.num_heads, request.leaf.length, m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        q, k, v, mask, features = structure.absorb_token_weights(
            q, k, v, request.mask, request.features
        )
        if features is not None and any(p.requires_grad for p in features.parameters()):
            q, k = features(q, k)  # inside the operator they would get no gradient
            features = None
        dtype = structure.common_dtype(q, k, v)
        floor, nonnegative = request.floor, request.nonnegative
        with without_autocast(q.device.type):
            return attend_on_grid(q, k, v, mask, dtype, features, floor, nonnegative)


def no_table(request: AttentionRequest) -> str | None:
    """Say why the tiles of a table cannot serve a request; None if they can."""
    if request.device.type != "cpu":
        return f"runs on a CPU, and the tensors are on {request.device.type}"
    mask = structure.without_token_weights(request.mask)
    _, inner = structure.split_border(mask)
    if not isinstance(inner, Toeplitz | Exponential):
        return f"needs a Toeplitz or Exponential mask, got {type(inner).__name__}"
    if mask.batch_shape != inner.batch_shape:
        return "needs a border with the leading dims of its table"
    return "has no dropout of weights" if request.dropout > 0 else None


def unavailable(request: AttentionRequest) -> str | None:
    """Say why no C++ operator can serve a request, whatever its mask; None if one can."""
    if request.device.type != "cpu":
        return f"runs on a CPU, and the tensors are on {request.device.type}"
    if request.tracing == "export":
        return "cannot be exported"
    if request.tracing == "transform":
        return "has no torch.func transforms"
    if request.dtype not in (torch.float32, torch.float64):
        return f"computes in float32 or float64, not in {request.dtype}"
    return None if build.is_built() else "needs a C++ compiler and ninja, and VIT_RPE_NATIVE not 0"


def attend_on_grid(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    dtype: torch.dtype,
    features: FeatureMap | None = None,
    floor: float = 0.0,
    nonnegative: bool = False,
    divide: bool = True,
) -> Tensor:
    """Masked attention (..., L, D), computed in `dtype`. Leading dims of q, k and v are equal.

    Args:
        features: the map that q and k still need; made again in the backward pass.
        nonnegative: no feature or weight is negative, so that absolute sums are the sums.
        divide: by the sums of the rows; otherwise these are one more column, (..., L, D + 1).
    """
    border, inner = structure.split_border(mask)
    prefix = 0 if border is None else border.prefix
    weights = (None, None, None) if border is None else (border.row, border.column, border.corner)
    table = inner.toeplitz() if isinstance(inner, Exponential) else inner
    assert isinstance(table, Toeplitz)
    groups = TableGroups(q.shape[:-2], table.batch_shape)
    call = _Call(table.grid, prefix, dtype, features, floor, nonnegative, divide)
    tensors = (*map(groups.split, (q, k, v)), table.offsets, *weights)
    if torch.compiler.is_compiling():  # a compiler finds out itself what is cheap to make again
        return groups.join(_attend(call, *tensors))
    return groups.join(_Attention.apply(call, *tensors))


@dataclass(frozen=True)
class _Call:
    """Everything that one call must know besides its tensors."""

    grid: tuple[int, ...]
    prefix: int
    dtype: torch.dtype
    features: Any  # a feature map, or its function
    floor: float
    nonnegative: bool
    divide: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Prefix tokens, slices of the grid, cells of a slice."""
        return self.prefix, self.grid[0], prod(self.grid[1:])


def _attend(call: _Call, *leaves: Any) -> Tensor:
    """The definition of what `_Attention` computes, with the gradients of the operator."""
    sums, total, absolute = _sums(call, *_kernel_inputs(call, *leaves))
    if not call.divide:
        return torch.cat([sums, total], -1)
    total = safe_denominator(total, total if call.nonnegative else absolute)
    return (sums / total).to(leaves[2].dtype)


def _sums(call: _Call, q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    """A v, the sums of A's rows and their absolute sums."""
    sums, total, absolute = torch.ops.vit_rpe.explicit_grid(q, k, v, *mask, *call.sizes)
    if call.floor:  # a matrix of rank one
        sums = sums + call.floor * v.sum(-2, keepdim=True)
        total, absolute = (x + call.floor * q.shape[-2] for x in (total, absolute))
    return sums, total, absolute


class _Attention(torch.autograd.Function):
    """q, k, v (T, S, L, ...) and the weights of masks: a table, row, column, corner of a border."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *leaves: Any) -> Tensor:
        sums, total, absolute = _sums(call, *_kernel_inputs(call, *leaves))
        ctx.call = call
        if not call.divide:
            ctx.save_for_backward(*leaves, None, None)
            return torch.cat([sums, total], -1)
        total = safe_denominator(total, total if call.nonnegative else absolute)
        result = torch.div(sums, total, out=_tokens_first(sums)).to(leaves[2].dtype)
        ctx.save_for_backward(*leaves, result, total)
        return result

    @staticmethod
    @differentiable_once
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        call = ctx.call
        *leaves, result, denominator = ctx.saved_tensors
        grad = grad.to(call.dtype)
        result = None if result is None else result.to(call.dtype)

        def gradients(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Sequence[Tensor]:
            dq, dk, dv, *dmask = torch.ops.vit_rpe.explicit_grid_backward(
                q, k, v, grad, result, denominator, *mask, *call.sizes
            )
            if call.floor:
                dv += call.floor * (grad / denominator).sum(-2, keepdim=True)
            return dq, dk, dv, *dmask

        # a module's hooks have run in the forward pass, and those of profilers cannot run here
        features = None if call.features is None else call.features.forward
        make = partial(_kernel_inputs, replace(call, features=features))
        return None, *gradients_by_recomputing(make, gradients, leaves, ctx.needs_input_grad[1:])


def _kernel_inputs(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, *border: Tensor | None
) -> tuple[Tensor, ...]:
    """phi(q), phi(k), v, and the weights of table and border, as the operator takes them."""
    if call.features is not None:
        q, k = call.features(q, k)
    lead = offsets.shape[: -len(call.grid)]
    weights = border_weights(border, call.prefix, lead, q.device)
    return tuple(x.to(call.dtype) for x in (q, k, v, _unfolded(offsets, call.grid), weights))


def _tokens_first(x: Tensor) -> Tensor:
    """An empty tensor (T, S, L, C) like x, stored as (S, L, T, C): what a model reads next.

    Not a view of another: autograd forbids to change the view that a custom function returns.
    """
    tables, samples, length, channels = x.shape
    strides = (channels, length * tables * channels, tables * channels, 1)
    return x.new_empty_strided(x.shape, strides)


def _unfolded(offsets: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The tables with all axes but the first written out, (T, P (2 n - 1) P).

    A row of the mask is a window of it: with n cells along the first axis, and i' and j' counting
    the P cells of a slice of the grid,

        unfolded[P - 1 - i', j_1 - i_1 + n - 1, j'] = M[(i_1, i'), (j_1, j')].
    """
    d = len(grid)
    # turned around, the table is indexed by key minus query, and windows run forward
    tables = offsets.reshape(-1, *offsets.shape[-d:]).flip(list(range(1, d + 1)))
    for n in grid[1:]:
        tables = tables.unfold(1 - d, n, 1)
    return tables.movedim(1, d).flatten(1)


def table_bytes(request: AttentionRequest) -> int:
    """Bytes of all tables, written out."""
    mask = request.leaf
    assert isinstance(mask, Toeplitz | Exponential)
    cells = prod(mask.grid[1:])
    return prod(mask.batch_shape) * 2 * mask.grid[0] * cells**2 * request.dtype.itemsize
