"""Linear attention on a GPU, fused: feature map, mask, products and normalizer in one pass."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.features import ELUFeatures, FeatureMap, ReLUFeatures, SquareFeatures
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from . import form

# Maps that are applied inside the kernels: q and k are kept as they are.
_INSIDE: dict[type[FeatureMap], str] = {
    ReLUFeatures: "relu",
    ELUFeatures: "elu",
    SquareFeatures: "square",
}


class FusedLinear:
    """Toeplitz and Exponential masks, perhaps behind prefix tokens and with token weights."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "gpu"

    def supports(self, request: AttentionRequest) -> str | None:
        refusal = form.refusal(request)
        if refusal is not None:
            return refusal
        if request.floor and structure.has_token_weights(request.mask):
            return "has no floor under token weights"
        if request.operands == torch.float16 and request.wide_range:
            return "multiplies float16, which has not the range of these features"
        return form.no_kernel(request, _inside(request.features))

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        return form.cost(request, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        q, k, values, mask, features = structure.absorb_token_weights(
            q, k, v, request.mask, request.features
        )
        inside = _inside(features)
        if features is not None and inside == "none":
            q, k = features(q, k)
        with without_autocast(q.device.type):
            tables = form.Tables.of(mask, q.shape[:-2])
            q, k, values = (tables.groups.split(x.to(request.operands)) for x in (q, k, values))
            out, *_ = torch.ops.vit_rpe.fused_attention(
                *(q, k, values, tables.offsets, tables.border, None, None, None),
                "linear",
                tables.grid,
                tables.prefix,
                0,
                inside,
                request.nonnegative and request.floor >= 0,
                request.floor,
                1.0,
                form.mask_budget(request),
            )
            return tables.groups.join(out).to(v.dtype)


def _inside(features: FeatureMap | None) -> str:
    """The name of a map that the kernels apply; none if somebody looks at what it returns."""
    if features is None or features.unit_norm:
        return "none"
    watched = features._forward_hooks or features._forward_pre_hooks
    return "none" if watched else _INSIDE.get(type(features), "none")
