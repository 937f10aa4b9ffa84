"""Masked attention, linear and by softmax: check the call, plan it, run the plan.

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
    if path not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
    if dropout > 0 and path not in ("auto", "explicit"):
        raise ValueError(f"dropout needs the explicit path, got path {path!r}")
    _check(q, k, v, mask, budget)
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
    return _attend(request, q, k, v)


def masked_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    budget: int | None = None,
) -> Tensor:
    """Softmax attention with the logarithms of a mask as bias, without the L x L matrix.

        out = softmax(q k^T scale + log M) v

    q, k are (..., L, C), v is (..., L, D); the result has v's dtype. M = 0 hides a key from a query
    and has no gradient there; a query that sees nothing gets zeros. Memory is O(L): matrices exist
    a tile at a time, and the backward pass makes them again.

    Args:
        mask: one that promises to have no negative entry, as those of `vit_rpe.rpe` do; masks that
            cannot know take `nonnegative=True`. `mask.check()` looks at the values.
        scale: of the logits; 1 / sqrt(C) by default.
        dropout: probability of dropping a weight.
        budget: bytes that may be used beyond inputs and outputs, forward and backward.
    """
    _check(q, k, v, mask, budget)
    if not mask.nonnegative:
        raise ValueError(
            f"softmax takes the logarithm of its mask, and this {type(mask).__name__} does not "
            "promise to have no negative entry; nonnegative=True in its constructor does"
        )
    request = AttentionRequest.of(
        q, k, v, mask, kernel="softmax", scale=scale, dropout=dropout, budget=budget
    )
    return _attend(request, q, k, v)


def _attend(request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.expand(*request.batch_shape, *x.shape[-2:]) for x in (q, k, v))
    parts = run(plan_attention(request), request, q, k, v)
    if len(parts) == 1:
        return parts[0]
    with without_autocast(q.device.type):  # it would look for a common type, in vain
        return stack_rows(parts)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Mask, budget: int | None) -> None:
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


torch.fx.wrap("masked_linear_attention")
torch.fx.wrap("masked_softmax_attention")
