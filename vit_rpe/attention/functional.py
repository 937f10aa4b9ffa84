"""Masked linear attention: check the call, plan it, run the plan.

Shapes: L tokens, M features, D value channels; leading dims are batch and heads and broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import stack_rows
from vit_rpe.precision import without_autocast

from .plan import PATHS, AttentionRequest, PathName, plan_attention, run


def masked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    features: FeatureMap | None = None,
    path: PathName = "auto",
    budget: int | None = None,
    dropout: float = 0.0,
    floor: float = 0.0,
    wide_range: bool | None = None,
) -> Tensor:
    """Attention whose weights are kernel values times a mask, without the L x L matrix.

        out_i = sum_j M[i, j] (q_i . k_j) v_j  /  sum_j M[i, j] (q_i . k_j)

    q, k (..., L, M) are feature-mapped, v is (..., L, D); the result has v's dtype. Rows without
    any weight give zeros.

    Args:
        features: a map to apply to q and k first. The result is that of `q, k = features(q, k)`;
            where a form can, it does not keep them for the backward pass.
        path: `explicit`, `product`, `scan` (for Ones, Causal and Exponential masks, also inside
            Bordered, Scaled, Sum and BlockDiagonal), or `auto`, the cheapest of them by `plan.py`.
        budget: bytes that a path may use beyond its inputs and outputs, forward and backward.
        dropout: probability of dropping a weight; explicit path only.
        floor: added to every weight `M[i, j] (q_i . k_j)`, at no cost on any path; not to those of
            keys that `Scaled` or `Padding` hides, nor between the blocks of `BlockDiagonal`.
        wide_range: whether some keys may be smaller than others by more than float32 has digits. By
            default what the feature map says; of q and k that come mapped nothing is known, and the
            safe answer is yes. Masks that are multiplied by transforms then work in float64.
    """
    _check(q, k, v, mask, path, budget, dropout)
    request = AttentionRequest.of(
        q,
        k,
        v,
        mask,
        features=features,
        path=path,
        budget=budget,
        dropout=dropout,
        floor=floor,
        wide_range=wide_range,
    )
    q, k, v = (x.expand(*request.batch_shape, *x.shape[-2:]) for x in (q, k, v))
    parts = run(plan_attention(request), request, q, k, v)
    if len(parts) == 1:
        return parts[0]
    with without_autocast(q.device.type):  # it would look for a common type, in vain
        return stack_rows(parts)


def _check(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, path: str, budget: int | None, dropout: float
) -> None:
    if path not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2 or x.shape[-2] != mask.length:
            raise ValueError(
                f"a mask of {mask.length} tokens needs {name} ending in ({mask.length}, channels), "
                f"got {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name} must be of a floating-point dtype, got {x.dtype}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] < 1:
        raise ValueError(
            f"q and k need as many features, and at least one, got {q.shape[-1]} and {k.shape[-1]}"
        )
    if budget is not None and budget < 1:
        raise ValueError(f"budget must be a positive number of bytes, got {budget}")
    if dropout > 0 and path not in ("auto", "explicit"):
        raise ValueError(f"dropout needs the explicit path, got path {path!r}")


torch.fx.wrap("masked_linear_attention")
