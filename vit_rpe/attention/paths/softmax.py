"""Softmax attention in PyTorch: by row tiles for any mask, and fused where there is none.

Shapes: L tokens, C channels of q and k, D of v; leading dims are batch and heads.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Causal, Mask, Padding
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, explicit_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import log_weights, safe_softmax
from .explicit import of_samples, tile_sizes
from .recompute import recomputed


class _Softmax:
    """The common part of all forms of softmax attention."""

    kernel: ClassVar[KernelName] = "softmax"
    path: ClassVar[ConcretePath] = "explicit"

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        m, d = request.num_features, request.num_values
        return explicit_cost(request.num_heads, request.leaf.length, m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()


class FusedSoftmax(_Softmax):
    """No mask, or only hidden keys, or a causal mask: PyTorch's own attention."""

    name: ClassVar[str] = "sdpa"

    def supports(self, request: AttentionRequest) -> str | None:
        mask = structure.without_token_weights(request.mask)
        causal = isinstance(mask, Causal) and mask is request.mask
        ones = isinstance(mask, Padding) or structure.is_ones(mask)
        plain = ones and structure.hides_keys_at_most(request.mask)
        if not causal and not plain:
            return f"needs a mask of ones or a causal one, got {structure.describe(request.mask)}"
        if request.tracing == "transform":
            return "has no torch.func transforms"
        return None

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        return self._attend(request, q, k, v).to(v.dtype)

    def _attend(self, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attend = partial(
            F.scaled_dot_product_attention, dropout_p=request.dropout, scale=request.resolved_scale
        )
        if isinstance(request.mask, Causal):
            return attend(q, k, v, is_causal=True)
        keep = structure.kept_keys(request.mask)
        if keep is None:
            return attend(q, k, v)
        k, v = (x.masked_fill(~keep[..., None], 0.0) for x in (k, v))
        nothing = ~keep.any(-1, keepdim=True)  # such a sample sees all its keys, which are zeros
        seen = (keep | nothing)[..., None, :].expand(*q.shape[:-1], k.shape[-2])
        return attend(q, k, v, attn_mask=seen)


class TorchSoftmax(_Softmax):
    """Any mask, by its rows."""

    name: ClassVar[str] = "torch"

    def supports(self, request: AttentionRequest) -> str | None:
        return None

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        x = structure.softmax_inputs(q, k, v, request.mask)
        # where autocast asks for a lower precision the tiles have it, and their bias has not
        dtype = request.autocast or torch.promote_types(q.dtype, k.dtype)
        q, k, v = (y.to(dtype) for y in (x.q, x.k, x.v))
        with without_autocast(q.device.type):
            out = _tiles(q, k, v, x.mask, x.bias, plan.budget, request)
            return x.finish(out.to(x.v.dtype))


def _tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    budget: int,
    request: AttentionRequest,
) -> Tensor:
    """The attention, some samples by some rows at a time; the backward pass makes tiles again."""
    samples, rows = tile_sizes(q, mask, budget)
    if samples is None:
        return _row_tiles(q, k, v, mask, bias, None, rows, request)
    slices = [slice(i, i + samples) for i in range(0, q.shape[0], samples)]
    parts = zip(*(x.split(samples) for x in (q, k, v)), slices, strict=True)
    return torch.cat([_row_tiles(a, b, c, mask, bias, s, rows, request) for a, b, c, s in parts])


def _row_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    samples: slice | None,
    rows: int,
    request: AttentionRequest,
) -> Tensor:
    parts, start = [], 0
    for tile in q.split(rows, -2):
        args = (tile, k, v, mask, bias, samples, start, request)
        parts.append(recomputed(_one_tile, *args, random=request.dropout > 0))
        start += tile.shape[-2]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _one_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    samples: slice | None,
    start: int,
    request: AttentionRequest,
) -> Tensor:
    slab = mask.rows(start, start + q.shape[-2]).to(q.device)
    logs = log_weights(of_samples(slab, samples, q)).to(torch.promote_types(q.dtype, torch.float32))
    if bias is not None:
        logs = logs + of_samples(bias[..., None, :], samples, q).to(logs.dtype)
    if request.tracing == "transform" or q.dtype == torch.float64:
        weights = safe_softmax(q @ k.mT * request.resolved_scale + logs)
        return F.dropout(weights, request.dropout) @ v
    empty = (logs == -torch.inf).all(-1, keepdim=True)
    logs = logs.masked_fill(empty, 0.0).expand(*q.shape[:-1], k.shape[-2])  # whole: fused kernels
    if q.device.type != "cpu":
        logs = logs.to(q.dtype)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=logs, dropout_p=request.dropout, scale=request.resolved_scale
    )
    return out.masked_fill(empty, 0.0)
