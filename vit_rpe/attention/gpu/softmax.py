"""Softmax attention on a GPU with the logarithm of a mask as bias, fused."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from . import form


class FusedTableSoftmax:
    """Toeplitz and Exponential masks, perhaps behind prefix tokens and with token weights."""

    kernel: ClassVar[KernelName] = "softmax"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "gpu"

    def supports(self, request: AttentionRequest) -> str | None:
        return form.refusal(request) or form.no_kernel(request, "none")

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        return form.cost(request, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        x = structure.softmax_inputs(q, k, v, request.mask)
        with without_autocast(q.device.type):
            tables = form.Tables.of(x.mask, q.shape[:-2])
            bias = x.bias
            if bias is not None:
                bias = bias.float().expand(x.q.shape[:-1])[..., None]
                bias = tables.groups.split(bias)[..., 0].contiguous()
            tokens = (tables.groups.split(y.to(request.operands)) for y in (x.q, x.k, x.v))
            out, *_ = torch.ops.vit_rpe.fused_attention(
                *(*tokens, tables.offsets, tables.border, bias, None, None),
                "softmax",
                tables.grid,
                tables.prefix,
                0,
                "none",
                True,
                0.0,
                request.resolved_scale,
                form.mask_budget(request),
            )
            return x.finish(tables.groups.join(out).to(v.dtype))
