"""Softmax attention with the logarithm of a mask as bias, in timm's signature."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.attention import log_weights, softmax_attention
from vit_rpe.attention.streaming import Scratch, SoftmaxState
from vit_rpe.rpe import TokenLayout

from .base import MaskedAttention


class MaskedSoftmaxAttention(MaskedAttention):
    """Ordinary softmax attention with the same masks: `softmax(q k^T / sqrt d + log M) v`.

    Zeros of M become -inf; a query that sees nothing gets zeros.
    """

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, is_causal: bool
    ) -> Tensor:
        dropout = self.attn_drop.p if self.training else 0.0
        if self.rpe is None and layout.grids is None and layout.keep is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
        bias = log_weights(self.mask(q.shape[-2], q.device, layout, is_causal).dense())
        bias = bias[(None,) * (q.ndim - bias.ndim)]
        if layout.keep is not None:
            bias = torch.where(layout.keep[:, None, None, :], bias, -torch.inf)
        return softmax_attention(q, k, v, bias, dropout)

    def stream_state(self, scratch: Scratch) -> SoftmaxState:
        """A state for a clip that comes slice by slice."""
        return SoftmaxState(self.own_mask())
