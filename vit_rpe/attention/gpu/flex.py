"""The explicit path on a GPU, fused: FlexAttention, whose softmax gives masked kernel attention.

With log(q_i . k_j) + log M[i, j] as its logits, softmax weighs key j by M[i, j] (q_i . k_j) over
the sum of these: the definition itself. A kernel value of 0 has the logit -inf, which is right
going forward and NaN going back: it serves inference only.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from vit_rpe.masks import Bordered, Mask, Toeplitz

from .. import structure
from ..cost import PathCosts, explicit_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName

# FlexAttention's kernels need at least this many features and channels.
_LEAST_WIDTH = 16


class FlexExplicit:
    """Inference with a Toeplitz mask for each head, perhaps behind prefix tokens."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "gpu"
    device: str = "cuda"
    compiled: bool = True

    def supports(self, request: AttentionRequest) -> str | None:
        if request.device.type != self.device:
            return f"runs on CUDA, and the tensors are on {request.device.type}"
        mask = structure.without_token_weights(request.mask)
        _, inner = structure.split_border(mask)
        if not isinstance(inner, Toeplitz):
            return f"needs a Toeplitz mask, got {type(inner).__name__}"
        if len(mask.batch_shape) > 1 or len(request.batch_shape) != 2:
            return "needs q, k, v of shape (batch, heads, tokens, channels) and a mask per head"
        if not request.nonnegative:
            return "needs features and masks that promise no negative value"
        if request.grad:
            return "has no gradients: its logarithms are not finite where a kernel value is 0"
        if request.tracing:
            return "cannot be traced"
        if request.floor or request.dropout or request.budget is not None:
            return "has no floor, dropout or budget"
        if min(request.num_features, request.num_values) < _LEAST_WIDTH:
            return f"needs {_LEAST_WIDTH} features and channels"
        return None

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        m, d = request.num_features, request.num_values
        return explicit_cost(request.num_heads, request.leaf.length, m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        q, k, values, mask, features = structure.absorb_token_weights(
            q, k, v, request.mask, request.features
        )
        if features is not None:
            q, k = features(q, k)
        return flex_attention(q, k, values.to(q.dtype), mask, self.compiled).to(v.dtype)


def flex_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, compiled: bool = True) -> Tensor:
    """Masked attention of feature-mapped q, k (B, H, L, M) and v (B, H, L, D).

    Rows without any weight give zeros.
    """
    found, inner = structure.split_border(mask)
    border = Bordered(inner, 0) if found is None else found
    assert isinstance(inner, Toeplitz)
    heads, p = q.shape[1], border.prefix
    cell, origin = _cells(inner.grid, q.device)
    cell = torch.nn.functional.pad(cell, (p, 0))

    def log_weights(value: Tensor | None, *shape: int) -> Tensor:
        value = q.new_ones(shape) if value is None else value.to(q)
        return value.expand(heads, *shape).log()

    table = log_weights(inner.offsets, *inner.offsets.shape[-len(inner.grid) :]).flatten(1)
    prefix = max(p, 1)  # an empty border is never read, but something must stand there
    ones = border if p else Bordered(inner, prefix)
    row, column = log_weights(ones.row, prefix), log_weights(ones.column, prefix)
    corner = log_weights(ones.corner, prefix, prefix)

    def masked_kernel(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        a, c = i.clamp(max=prefix - 1), j.clamp(max=prefix - 1)
        from_prefix = torch.where(j < p, corner[h, a, c], row[h, a])
        from_grid = torch.where(j < p, column[h, c], table[h, cell[i] - cell[j] + origin])
        return score.log() + torch.where(i < p, from_prefix, from_grid)

    out = (_compiled() if compiled else _flex())(q, k, v, score_mod=masked_kernel, scale=1.0)
    return out.nan_to_num(0.0)


def _cells(grid: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Each token's index in a flat table of offsets, (L,), and that of offset zero."""
    cell, origin = torch.zeros(1, dtype=torch.int64, device=device), 0
    for n in grid:
        cell = (cell[:, None] * (2 * n - 1) + torch.arange(n, device=device)).flatten()
        origin = origin * (2 * n - 1) + n - 1
    return cell, origin


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _compiled() -> Any:
    return torch.compile(_flex())
