"""Linear attention with a mask, in timm's signature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.functional import PATHS, PathName, best_path
from vit_rpe.attention.memory import LinearMemory
from vit_rpe.attention.past import Room
from vit_rpe.attention.scan import check_scannable
from vit_rpe.features import FeatureMap, ReLUFeatures
from vit_rpe.masks import Bordered, Scaled
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

    def fix_path(self, num_tokens: int, device: torch.device) -> None:
        """Choose a path once, from the shapes: traces, processes and resumed runs then agree."""
        mask = self.mask(num_tokens, device)
        inner = mask.inner if isinstance(mask, Bordered) else mask
        if self.path == "auto":
            m = self.features.num_features(self.head_dim)
            self.path = best_path(
                inner, self.num_heads, m, self.head_dim + 1, device, self.features.wide_range
            )
        elif self.path == "scan":
            check_scannable(inner)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, is_causal: bool
    ) -> Tensor:
        mask = self.mask(q.shape[-2], q.device, layout, is_causal)
        if layout.keep is not None:
            mask = Scaled(mask, right=layout.keep[:, None])
        # the modules of vit_rpe.rpe make no negative weight; of other masks nothing is known
        positive_mask = self.rpe is None or getattr(self.rpe, "nonnegative", False)
        return masked_linear_attention(
            q,
            k,
            v,
            mask,
            features=self.features,
            path=self.path,
            nonnegative=self.features.nonnegative and positive_mask,
            dropout=self.attn_drop.p if self.training else 0.0,
            floor=self.floor,
        )

    def memory(self, room: Room) -> LinearMemory:
        """What the layer keeps of a clip that comes slice by slice."""
        return LinearMemory(self.own_mask(), self.features, self.floor, room)
