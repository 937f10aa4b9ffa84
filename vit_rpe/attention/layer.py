"""Attention layers with timm's signature, masked by what their `rpe` module makes.

Shapes: B samples, H heads, L tokens (prefix tokens first, then the grid), C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from torch import Tensor

from vit_rpe.features import FeatureMap, ReLUFeatures
from vit_rpe.masks import BlockDiagonal, Bordered, Causal, Mask, Ones, Scaled

from .functional import PATHS, PathName, best_path, masked_linear_attention

if TYPE_CHECKING:
    from .memory import Memory


class MaskedAttention(Attention):
    """timm's projections around an attention that has a mask.

    Args:
        rpe: a module that returns a mask over the grid when called, `rpe(grid)` for another grid
            than its own; None for no mask.
        num_prefix_tokens: class and register tokens before the grid.
        border: a module that puts the prefix tokens before a mask; None for a border of ones.
        options: everything that timm's `Attention` takes.
    """

    grids: Sequence[tuple[int, ...]] | None = None
    """The grids of the images at hand, one after the other, each behind its prefix tokens.
    None: one image of the rpe's own grid."""
    memory: Memory | None = None
    """Within a stream: what attends in the layer's place. See `memory.py`."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        rpe: Callable[..., Mask] | None = None,
        num_prefix_tokens: int = 0,
        border: Callable[[Mask], Mask] | None = None,
        **options: Any,
    ):
        super().__init__(dim, num_heads=num_heads, **options)
        self.rpe = rpe
        self.border = border
        self.num_prefix_tokens = num_prefix_tokens

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        batch, length, _ = x.shape
        x = _without_padding(x, attn_mask)
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.unbind(2)  # before they are transposed: so their gradients join in one copy
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        x = _attend(self, self.q_norm(q), self.k_norm(k), v, attn_mask, is_causal)
        x = x.transpose(1, 2).reshape(batch, length, self.attn_dim)
        x = self.norm(x)
        if gate is not None:
            x = x * gate
        return self.proj_drop(self.proj(x))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        """The attention itself: q, k, v are (B, H, L, C / H), keep (B, L) is what can be seen."""
        raise NotImplementedError("a masked attention says how it attends")

    def mask(self, length: int, device: torch.device, is_causal: bool = False) -> Mask:
        """The mask over all `length` tokens."""
        if self.rpe is None and self.grids is None:
            return Causal(length, device) if is_causal else Ones(length, device)
        if self.grids is None:
            parts = [self._bordered(self._grid_mask(None, device))]
        else:
            parts = [self._bordered(self._grid_mask(grid, device)) for grid in self.grids]
        mask = parts[0] if len(parts) == 1 else BlockDiagonal(parts)
        if mask.length != length:
            prefix = self.num_prefix_tokens * len(parts)
            raise ValueError(
                f"the rpe makes a mask of {mask.length - prefix} grid tokens, "
                f"but {length - prefix} came after {prefix} prefix tokens"
            )
        return mask

    def _grid_mask(self, grid: tuple[int, ...] | None, device: torch.device) -> Mask:
        if self.rpe is not None:
            return self.rpe() if grid is None else self.rpe(grid)
        assert grid is not None
        return Ones(prod(grid), device)

    def _bordered(self, mask: Mask) -> Mask:
        if self.num_prefix_tokens == 0:
            return mask
        return Bordered(mask, self.num_prefix_tokens) if self.border is None else self.border(mask)


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
        if self.path == "auto":
            mask = self.mask(num_tokens, device)
            inner = mask.inner if isinstance(mask, Bordered) else mask
            m = self.features.num_features(self.head_dim)
            self.path = best_path(
                inner, self.num_heads, m, self.head_dim + 1, device, self.features.wide_range
            )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        mask = self.mask(q.shape[-2], q.device, is_causal)
        if keep is not None:
            mask = Scaled(mask, right=keep[:, None])
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


class MaskedSoftmaxAttention(MaskedAttention):
    """Ordinary softmax attention with the same masks: `softmax(q k^T / sqrt d + log M) v`.

    Zeros of M become -inf; a query that sees nothing gets zeros.
    """

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        dropout = self.attn_drop.p if self.training else 0.0
        if self.rpe is None and self.grids is None and keep is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
        bias = log_weights(self.mask(q.shape[-2], q.device, is_causal).dense())
        bias = bias[(None,) * (q.ndim - bias.ndim)]
        if keep is not None:
            bias = torch.where(keep[:, None, None, :], bias, -torch.inf)
        return softmax_attention(q, k, v, bias, dropout)


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


# torch.fx records each of these as one call: they branch on optional masks, and loop over tiles.


def _without_padding(x: Tensor, attn_mask: Tensor | None) -> Tensor:
    """What is padded leaves no trace, not even in the gradients of the projections."""
    if attn_mask is None:
        return x
    return x.masked_fill(~_kept_keys(attn_mask, *x.shape[:2])[:, :, None], 0.0)


def _attend(
    layer: MaskedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    if layer.memory is not None:
        return layer.memory.attend(q, k, v)
    if is_causal and layer.rpe is not None:
        raise ValueError(
            "is_causal cannot be combined with an rpe; give the rpe one_sided axes instead"
        )
    keep = None if attn_mask is None else _kept_keys(attn_mask, q.shape[0], q.shape[2])
    return layer.attend(q, k, v, keep, is_causal)


torch.fx.wrap("_without_padding")
torch.fx.wrap("_attend")


def _kept_keys(attn_mask: Tensor, batch: int, length: int) -> Tensor:
    """The (B, L) keep mask in a boolean attn_mask that is the same for all heads and queries."""
    if attn_mask.dtype == torch.bool and tuple(attn_mask.shape) == (batch, 1, 1, length):
        return attn_mask[:, 0, 0]
    if attn_mask.dtype == torch.bool and tuple(attn_mask.shape) == (batch, length):
        return attn_mask
    raise ValueError(
        f"attn_mask can only hide keys: boolean, ({batch}, {length}) or "
        f"({batch}, 1, 1, {length}), True to keep; got {attn_mask.dtype} "
        f"{tuple(attn_mask.shape)}. Other masks enter through the layer's rpe"
    )
