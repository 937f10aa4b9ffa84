"""The explicit path on a GPU, fused: FlexAttention, whose softmax gives masked kernel attention.

With log(q_i . k_j) + log M[i, j] as its logits, softmax weighs key j by M[i, j] (q_i . k_j) over
the sum of these: the definition itself. A kernel value of 0 has the logit -inf, which is right
going forward and NaN going back: it serves inference alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from vit_rpe.masks import Bordered, Mask, Toeplitz


def flex_fits(
    mask: Mask, nonnegative: bool, q: Tensor, k: Tensor, v: Tensor, device: str = "cuda"
) -> bool:
    """On CUDA, without gradients or negative weights, for a table per head, perhaps bordered."""
    inner = mask.inner if isinstance(mask, Bordered) else mask
    tensors = (q, k, v, *mask.tensors().values(), *inner.tensors().values())
    return (
        isinstance(inner, Toeplitz)
        and len(mask.lead) <= 1
        and nonnegative
        and all(x.device.type == device for x in tensors)
        and all(x.ndim == 4 for x in (q, k, v))
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and not torch.compiler.is_compiling()
    )


def flex_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, compiled: bool = True) -> Tensor:
    """Masked attention of feature-mapped q, k (B, H, L, M) and v (B, H, L, D).

    Rows without any weight give zeros.
    """
    border, inner = (mask, mask.inner) if isinstance(mask, Bordered) else (Bordered(mask, 0), mask)
    assert isinstance(inner, Toeplitz)
    heads, p = q.shape[1], border.prefix
    place, origin = _places(inner.grid, q.device)
    place = torch.nn.functional.pad(place, (p, 0))

    def log_weights(value: Tensor | None, *shape: int) -> Tensor:
        value = q.new_ones(shape) if value is None else value.to(q.dtype)
        return value.expand(heads, *shape).log()

    table = log_weights(inner.offsets, *inner.offsets.shape[-len(inner.grid) :]).flatten(1)
    prefix = max(p, 1)  # an empty border is never read, but something must stand there
    ones = border if p else Bordered(inner, prefix)
    row, column = log_weights(ones.row, prefix), log_weights(ones.column, prefix)
    corner = log_weights(ones.corner, prefix, prefix)

    def masked_kernel(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        a, c = i.clamp(max=prefix - 1), j.clamp(max=prefix - 1)
        from_prefix = torch.where(j < p, corner[h, a, c], row[h, a])
        from_grid = torch.where(j < p, column[h, c], table[h, place[i] - place[j] + origin])
        return score.log() + torch.where(i < p, from_prefix, from_grid)

    out = (_compiled() if compiled else _flex())(q, k, v, score_mod=masked_kernel, scale=1.0)
    return out.nan_to_num(0.0)


def _places(grid: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Each token's place in a flat table of offsets, (L,), and that of offset zero."""
    place, origin = torch.zeros(1, dtype=torch.int64, device=device), 0
    for n in grid:
        place = (place[:, None] * (2 * n - 1) + torch.arange(n, device=device)).flatten()
        origin = origin * (2 * n - 1) + n - 1
    return place, origin


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _compiled() -> Any:
    return torch.compile(_flex())
