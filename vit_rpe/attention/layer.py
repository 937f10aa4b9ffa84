"""Attention layers with timm's signature, masked by what their `rpe` module makes.

Shapes: B samples, H heads, L tokens (prefix tokens first, then the grid), C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from torch import Tensor

from vit_rpe.features import FeatureMap, ReLUFeatures
from vit_rpe.masks import Bordered, Causal, Mask, Ones, Scaled

from .functional import PATHS, PathName, masked_linear_attention


class _MaskedAttention(Attention):
    """timm's projections around an attention that has a mask.

    Args:
        rpe: a module that returns a mask over the grid when called; None for no mask.
        num_prefix_tokens: class and register tokens before the grid.
        options: everything that timm's `Attention` takes.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        rpe: Callable[[], Mask] | None = None,
        num_prefix_tokens: int = 0,
        **options: Any,
    ):
        super().__init__(dim, num_heads=num_heads, **options)
        self.rpe = rpe
        self.num_prefix_tokens = num_prefix_tokens

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        batch, length, _ = x.shape
        if is_causal and self.rpe is not None:
            raise ValueError(
                "is_causal cannot be combined with an rpe; give the rpe one_sided axes instead"
            )
        keep = None if attn_mask is None else _kept_keys(attn_mask, batch, length)
        if keep is not None:
            # what is padded leaves no trace, not even in the gradients of the projections
            x = x.masked_fill(~keep[:, :, None], 0.0)
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = self.attend(self.q_norm(q), self.k_norm(k), v, keep, is_causal)
        x = x.transpose(1, 2).reshape(batch, length, self.attn_dim)
        x = self.norm(x)
        if gate is not None:
            x = x * gate
        return self.proj_drop(self.proj(x))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        raise NotImplementedError


class MaskedLinearAttention(_MaskedAttention):
    """Linear attention by a feature map, masked by `rpe`.

    Args:
        features: the feature map; ReLU by default.
        path: how the masked product is computed (`masked_linear_attention`).
        dim, num_heads, rpe, num_prefix_tokens, options: as in timm's `Attention`, and see above.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        features: FeatureMap | None = None,
        path: PathName = "auto",
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

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        q, k = self.features(q, k, None if keep is None else keep[:, None])
        dropout = self.attn_drop.p if self.training else 0.0
        return _linear_attention(
            q,
            k,
            v,
            self.rpe,
            self.num_prefix_tokens,
            keep,
            is_causal,
            self.path,
            self.features.nonnegative,
            dropout,
        )


class MaskedSoftmaxAttention(_MaskedAttention):
    """Ordinary softmax attention with the same masks: `softmax(q k^T / sqrt d + log M) v`.

    Zeros of M become -inf; a query that sees nothing gets zeros.
    """

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_causal: bool
    ) -> Tensor:
        dropout = self.attn_drop.p if self.training else 0.0
        return _softmax_attention(
            q, k, v, self.rpe, self.num_prefix_tokens, keep, is_causal, dropout
        )


def _linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rpe: Callable[[], Mask] | None,
    prefix: int,
    keep: Tensor | None,
    is_causal: bool,
    path: PathName,
    nonnegative: bool,
    dropout: float,
) -> Tensor:
    mask = _whole_mask(q, rpe, prefix, is_causal)
    if keep is not None:
        mask = Scaled(mask, right=keep[:, None])
    # the modules of vit_rpe.rpe make no negative weight; of other masks nothing is known
    nonnegative = nonnegative and (rpe is None or getattr(rpe, "nonnegative", False))
    return masked_linear_attention(
        q, k, v, mask, path=path, nonnegative=nonnegative, dropout=dropout
    )


def _softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rpe: Callable[[], Mask] | None,
    prefix: int,
    keep: Tensor | None,
    is_causal: bool,
    dropout: float,
) -> Tensor:
    bias = None
    if rpe is not None:
        matrix = _whole_mask(q, rpe, prefix, is_causal).dense()
        # log(0) would be right going forward and NaN going back
        bias = (
            matrix.masked_fill(matrix == 0, 1.0)
            .log()
            .masked_fill(matrix == 0, -torch.inf)
            .to(q.dtype)
        )
    if keep is not None:
        bias = q.new_zeros(()) if bias is None else bias
        bias = torch.where(keep[:, None, None, :], bias, -torch.inf)
    if bias is not None and bias.ndim == 3:
        bias = bias[None]
    if is_causal and bias is not None:
        bias = bias.masked_fill(Causal(q.shape[-2], q.device).dense() == 0, -torch.inf)
        is_causal = False
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
    bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], q.shape[2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0.0)


def _whole_mask(q: Tensor, rpe: Callable[[], Mask] | None, prefix: int, is_causal: bool) -> Mask:
    length = q.shape[-2]
    if rpe is None:
        return Causal(length, q.device) if is_causal else Ones(length, q.device)
    mask = Bordered(rpe(), prefix) if prefix else rpe()
    if mask.length != length:
        raise ValueError(
            f"the rpe makes a mask of {mask.length - prefix} grid tokens, "
            f"but {length - prefix} came after {prefix} prefix tokens"
        )
    return mask


def _kept_keys(attn_mask: Tensor, batch: int, length: int) -> Tensor:
    """The (B, L) keep mask in a boolean attn_mask that is the same for all heads and queries."""
    if attn_mask.dtype == torch.bool and tuple(attn_mask.shape) == (batch, 1, 1, length):
        return attn_mask[:, 0, 0]
    if attn_mask.dtype == torch.bool and tuple(attn_mask.shape) == (batch, length):
        return attn_mask
    raise ValueError(
        f"attn_mask can only hide keys: boolean, ({batch}, {length}) or ({batch}, 1, 1, {length}), "
        f"True to keep; "
        f"got {attn_mask.dtype} {tuple(attn_mask.shape)}. Other masks enter through the layer's rpe"
    )


# They build masks and loop over tiles: torch.fx records a call instead of looking inside.
torch.fx.wrap("_linear_attention")
torch.fx.wrap("_softmax_attention")
