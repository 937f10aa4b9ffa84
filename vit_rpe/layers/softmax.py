"""Softmax attention with the logarithm of a mask as bias, in timm's signature."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.attention import AttentionRequest, masked_softmax_attention
from vit_rpe.attention.streaming import Scratch, SoftmaxState
from vit_rpe.masks import Scaled
from vit_rpe.rpe import TokenLayout

from .base import MaskedAttention


class MaskedSoftmaxAttention(MaskedAttention):
    """Ordinary softmax attention with the same masks: `softmax(q k^T / sqrt d + log M) v`.

    Zeros of M become -inf; a query that sees nothing gets zeros.
    """

    def attention_request(
        self,
        batch_size: int = 1,
        device: torch.device | None = None,
        num_tokens: int | None = None,
    ) -> AttentionRequest:
        """The request for a plan that a batch makes, by default on the device where the layer is.

        A layer without an rpe must be told its number of tokens.
        """
        weight = self.qkv.weight
        return AttentionRequest(
            mask=self.own_mask(num_tokens),
            batch_shape=(batch_size, self.num_heads),
            num_features=self.head_dim,
            num_values=self.head_dim,
            dtype=torch.promote_types(weight.dtype, torch.float32),
            device=weight.device if device is None else device,
            dropout=self.attn_drop.p if self.training else 0.0,
            grad=self.training,
            kernel="softmax",
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, is_causal: bool
    ) -> Tensor:
        mask = self.mask(q.shape[-2], q.device, layout, is_causal)
        if layout.keep is not None:
            mask = Scaled(mask, right=layout.keep[:, None])
        dropout = self.attn_drop.p if self.training else 0.0
        return masked_softmax_attention(q, k, v, mask, dropout=dropout)

    def stream_state(self, scratch: Scratch) -> SoftmaxState:
        """A state for a clip that comes slice by slice."""
        return SoftmaxState(self.own_mask())
