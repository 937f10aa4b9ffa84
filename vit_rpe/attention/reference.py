"""The definition of masked attention, with L x L matrices: by a kernel, and by softmax.

By a kernel it is the paper's (Definition 2.1). Here is decided, once, what an empty row returns.
"""

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


def masked_softmax(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None = None
) -> Tensor:
    """`softmax(q k^T scale + log M) v`, by default with 1 / sqrt(channels). O(L^2) time and memory.

    q, k are (..., L, C), v is (..., L, D). An entry M[i, j] = 0 hides key j from query i and gets
    no gradient; a row of zeros gives zeros. No entry may be negative.
    """
    matrix = mask.dense()
    dtype = torch.promote_types(matrix.dtype, q.dtype)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = (matrix == 0).all(-2)[..., None]  # such a key may hold anything, even NaN
    k, v = (x.to(dtype).masked_fill(hidden, 0.0) for x in (k, v))
    logits = q.to(dtype) @ k.mT * factor + log_weights(matrix.to(dtype))
    return (safe_softmax(logits) @ v).to(q.dtype)


def log_weights(weights: Tensor) -> Tensor:
    """The logarithms of weights, -inf for those that are 0 or False."""
    if weights.dtype == torch.bool:
        zeros = torch.zeros(weights.shape, dtype=torch.get_default_dtype(), device=weights.device)
        return zeros.masked_fill(~weights, -torch.inf)
    hidden = weights == 0  # log(0) is slow going forward and NaN going back
    if not weights.requires_grad:
        return weights.masked_fill(hidden, 1.0).log_().masked_fill_(hidden, -torch.inf)
    return weights.masked_fill(hidden, 1.0).log().masked_fill(hidden, -torch.inf)


def safe_softmax(logits: Tensor) -> Tensor:
    """The softmax of rows; zeros for a row of -inf, and no gradient."""
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
