"""Softmax attention with a mask on a grid, on a CPU: one pass over tiles that stay in its cache.

The logarithms of a table, of a border and of weights of keys are added to the logits inside the
pass, and get their gradients there; q, k, v, the result and one number a row are kept for the
backward pass. The tiles are in `softmax.cpp`. Shapes: T tables, S samples that share a table, L
tokens, C channels of q and k, D of v.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.masks import Exponential, Mask, Toeplitz
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, explicit_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import log_weights
from ..tables import TableGroups, border_weights
from .explicit import no_table, table_bytes, unavailable

# Bytes that all tables may take, written out, without a budget.
_MOST_TABLE_BYTES = 1 << 30


class CpuSoftmax:
    """Toeplitz and Exponential masks, perhaps behind prefix tokens and with token weights."""

    kernel: ClassVar[KernelName] = "softmax"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "cpu"

    def supports(self, request: AttentionRequest) -> str | None:
        refusal = no_table(request)
        if refusal is not None:
            return refusal
        budget = _MOST_TABLE_BYTES if request.budget is None else request.budget
        if 2 * table_bytes(request) > budget:  # with their gradients
            return f"needs more than {budget} bytes for its table"
        return unavailable(request)

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        m, d = request.num_features, request.num_values
        return explicit_cost(request.num_heads, request.leaf.length, m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        x = structure.softmax_inputs(q, k, v, request.mask)
        with without_autocast(q.device.type):
            scale = request.resolved_scale
            out = _attend_on_grid(x.q, x.k, x.v, x.mask, x.bias, scale, request.dtype)
            return x.finish(out.to(v.dtype))


def _attend_on_grid(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """The attention (..., L, D), computed in `dtype`. Leading dims of q, k and v are equal."""
    border, inner = structure.split_border(mask)
    prefix = 0 if border is None else border.prefix
    weights = (None, None, None) if border is None else (border.row, border.column, border.corner)
    table = inner.toeplitz() if isinstance(inner, Exponential) else inner
    assert isinstance(table, Toeplitz)
    lead = table.batch_shape
    groups = TableGroups(q.shape[:-2], lead)
    if bias is not None:
        bias = groups.split(bias.to(dtype).expand(q.shape[:-1])[..., None])[..., 0]
    logs = log_weights(table.offsets.reshape(prod(lead), -1)).to(dtype)
    border_logs = log_weights(border_weights(weights, prefix, lead, q.device)).to(dtype)
    q, k, v = (groups.split(x.to(dtype)) for x in (q, k, v))
    operator = torch.ops.vit_rpe.softmax_grid
    return groups.join(operator(q, k, v, logs, border_logs, bias, table.grid, prefix, scale)[0])
