"""The definition of masked kernel attention (paper, Definition 2.1), with L x L matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.masks import Mask


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """`D^-1 A v` with `A = M * (q k^T)` and `D = diag(A 1)`. O(L^2) time and memory.

    q, k (..., L, M) are feature-mapped, v is (..., L, D). A row is empty if its sum is below
    dtype-eps times the sum of its absolute entries: it gives zeros.
    """
    matrix = mask.dense()
    dtype = torch.promote_types(matrix.dtype, q.dtype)
    # a key that no query sees may hold anything, even NaN; its finite numbers stay, for a weight of
    # 0 may be a learned one, and has a gradient
    hidden = (matrix == 0).all(-2)[..., None]
    k, v = (x.to(dtype).masked_fill(hidden & ~x.isfinite(), 0.0) for x in (k, v))
    weights = matrix.to(dtype) * (q.to(dtype) @ k.mT)
    return (
        weights
        @ v
        / safe_denominator(weights.sum(-1, keepdim=True), weights.abs().sum(-1, keepdim=True))
    ).to(q.dtype)


def safe_denominator(total: Tensor, absolute: Tensor) -> Tensor:
    """The sums of the rows, (..., L, 1), and infinity for those that are empty.

    A number over infinity is zero, and so is its gradient: an empty row returns zeros and learns
    nothing. There is no absolute threshold (small features are legitimate), and the sign is kept
    (masks may be negative).
    """
    empty = total.abs() <= torch.finfo(total.dtype).eps * absolute
    return total.masked_fill(empty, torch.inf)
