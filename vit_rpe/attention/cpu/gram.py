"""The product path on a CPU for masks M = F F^T with a sparse F, such as those of random walks.

Same numbers as `paths/product.py`, several times as fast: phi(k) v^T is never stored, what is
gathered is read with phi(q) at once, and all heads and columns go together. The loops are in
`gram.cpp`. Shapes: L tokens, H heads of all samples, M features, D value channels.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.masks.helpers import SparseFactor
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, product_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import safe_denominator
from .explicit import unavailable

# Times of one step relative to products in PyTorch, measured on Pubmed.
_SPEEDUP = 3.0


class CpuGram:
    """A mask that is a constant sparse matrix times its own transpose."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "product"
    name: ClassVar[str] = "cpu"

    def supports(self, request: AttentionRequest) -> str | None:
        mask = request.mask
        if not mask.has_sparse_factor:
            return f"needs a constant mask F F^T with a sparse F, got {structure.describe(mask)}"
        if not request.nonnegative:
            return "needs a mask and a feature map that promise no negative number"
        if request.floor:
            return "has no floor"
        return unavailable(request)

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        mask, m, d = request.mask, request.num_features, request.num_values + 1
        work = mask.cost(m * d)
        cost = product_cost(request.num_heads, mask.length, m, d, work, costs, False)
        return costs.call + (cost - costs.call) / _SPEEDUP

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        if request.features is not None:
            q, k = request.features(q, k)
        dtype = structure.common_dtype(q, k, v)
        with without_autocast(q.device.type):
            q, k, values = (_heads_inside(x).to(dtype) for x in (q, k, v))
            sums, total = _sums(q, k, values, request.mask.sparse_factor(dtype), plan.budget)
            result = sums / safe_denominator(total, total)[..., None]
        result = result.movedim(0, 1).reshape(*request.batch_shape, *result.shape[::2])
        return result.to(v.dtype)


def _heads_inside(x: Tensor) -> Tensor:
    """Bring (..., L, C) to (L, H, C)."""
    return x.reshape(-1, *x.shape[-2:]).movedim(0, 1)


def _sums(
    q: Tensor, k: Tensor, v: Tensor, factor: SparseFactor, budget: int
) -> tuple[Tensor, Tensor]:
    """A v and the sums of A's rows, some features at a time: (L, H, D) and (L, H)."""
    features = q.shape[-1]
    one = prod(v.shape[:2]) * (v.shape[2] + 1) * v.element_size()  # bytes that a feature takes
    most = max(1, budget // one)
    keep = 2 * features <= most  # what the backward pass would have to make again
    parts = [
        torch.ops.vit_rpe.sparse_gram(
            q[..., i : i + most], k[..., i : i + most], v, *factor.csr(), keep
        )
        for i in range(0, features, most)
    ]
    sums, total, _ = parts[0]
    for more, more_total, _ in parts[1:]:
        sums, total = sums + more, total + more_total
    return sums, total
