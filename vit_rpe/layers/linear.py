"""Linear attention with a mask, in timm's signature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vit_rpe.attention import PATHS, AttentionRequest, PathName, masked_linear_attention
from vit_rpe.attention.streaming import LinearState, Scratch
from vit_rpe.features import FeatureMap, ReLUFeatures
from vit_rpe.masks import Scaled
from vit_rpe.rpe import TokenLayout

from .base import MaskedAttention


class MaskedLinearAttention(MaskedAttention):
    """Linear attention by a feature map, masked by `rpe`.

    Args:
        features: the feature map; ReLU by default.
        path, floor: as in `masked_linear_attention`.
        dim, num_heads, rpe, num_prefix_tokens, border, options: as in `MaskedAttention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        features: FeatureMap | None = None,
        path: PathName = "auto",
        floor: float = 0.0,
        attn_drop: float = 0.0,
        **options: Any,
    ):
        if path not in PATHS:
            raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
        if attn_drop > 0 and path != "explicit":
            raise ValueError(
                f"attn_drop needs path='explicit', got path={path!r} and attn_drop={attn_drop}"
            )
        super().__init__(dim, num_heads, attn_drop=attn_drop, **options)
        self.features = ReLUFeatures() if features is None else features
        self.path: PathName = path
        self.floor = floor

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
            num_features=self.features.num_features(self.head_dim),
            num_values=self.head_dim,
            dtype=torch.promote_types(weight.dtype, torch.float32),
            device=weight.device if device is None else device,
            features=self.features,
            path=self.path,
            dropout=self.attn_drop.p if self.training else 0.0,
            floor=self.floor,
            wide_range=self.features.wide_range,
            grad=self.training,
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, is_causal: bool
    ) -> Tensor:
        mask = self.mask(q.shape[-2], q.device, layout, is_causal)
        if layout.keep is not None:
            mask = Scaled(mask, right=layout.keep[:, None])
        return masked_linear_attention(
            q,
            k,
            v,
            mask,
            features=self.features,
            path=self.path,
            dropout=self.attn_drop.p if self.training else 0.0,
            floor=self.floor,
        )

    def stream_state(self, scratch: Scratch) -> LinearState:
        """A state for a clip that comes slice by slice."""
        return LinearState(self.own_mask(), self.features, self.floor, scratch)
