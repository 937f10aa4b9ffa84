"""Softmax attention with a bias of its logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def log_weights(matrix: Tensor) -> Tensor:
    """log M, with -inf for zeros."""
    # log(0) would be right going forward and NaN going back
    hidden = matrix == 0
    return matrix.masked_fill(hidden, 1.0).log().masked_fill(hidden, -torch.inf)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float = 0.0
) -> Tensor:
    """Softmax attention with a bias of its logits; a query that sees nothing gets zeros."""
    # expanded by hand: the fused kernels want whole leading dims
    bias = bias.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0.0)
