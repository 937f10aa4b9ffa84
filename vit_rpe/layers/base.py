"""timm's attention layer around an attention that has a mask.

Shapes: B samples, H heads, L tokens (prefix tokens first, then the grid), C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor

from vit_rpe.masks import BlockDiagonal, Bordered, Causal, Mask, Ones
from vit_rpe.rpe import TokenLayout


class MaskedAttention(Attention):
    """timm's projections around an attention that has a mask.

    Args:
        rpe: a module that returns a mask over the grid when called, `rpe(grid)` for another grid
            than its own; None for no mask.
        num_prefix_tokens: class and register tokens before the grid.
        border: a module that puts the prefix tokens before a mask; None for a border of ones.
        options: everything that timm's `Attention` takes.
    """

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
        self, x: Tensor, attn_mask: Tensor | TokenLayout | None = None, is_causal: bool = False
    ) -> Tensor:
        """timm's forward pass; `attn_mask` may only hide keys, or be the layout of the tokens."""
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
        self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, is_causal: bool
    ) -> Tensor:
        """Attend with q, k, v (B, H, L, C / H); `layout.keep` is (B, L)."""
        raise NotImplementedError("a masked attention says how it attends")

    def mask(
        self,
        length: int,
        device: torch.device,
        layout: TokenLayout | None = None,
        is_causal: bool = False,
    ) -> Mask:
        """The mask over all `length` tokens, kept or not."""
        grids = None if layout is None else layout.grids
        if self.rpe is None and grids is None:
            return Causal(length, device) if is_causal else Ones(length, device)
        parts = [self._bordered(self._grid_mask(grid, device)) for grid in grids or (None,)]
        mask = parts[0] if len(parts) == 1 else BlockDiagonal(parts)
        if mask.length != length:
            prefix = self.num_prefix_tokens * len(parts)
            raise ValueError(
                f"the rpe makes a mask of {mask.length - prefix} grid tokens, "
                f"but {length - prefix} came after {prefix} prefix tokens"
            )
        return mask

    def own_mask(self, num_tokens: int | None = None) -> Mask:
        """The mask over the prefix tokens and the layer's own grid, or over `num_tokens` tokens."""
        device = self.qkv.weight.device
        if self.rpe is not None:
            return self._bordered(self._grid_mask(None, device))
        if num_tokens is None:
            raise ValueError("a layer without an rpe does not know its number of tokens; name it")
        return Ones(num_tokens, device)

    def offset_table(self) -> Tensor | None:
        """The weights of the layer's mask by offset, as of `GridRPE`; None where there are none."""
        table = getattr(self.rpe, "offset_table", None)
        return None if table is None else table()

    def _grid_mask(self, grid: tuple[int, ...] | None, device: torch.device) -> Mask:
        if self.rpe is not None:
            return self.rpe() if grid is None else self.rpe(grid)
        assert grid is not None
        return Ones(prod(grid), device)

    def _bordered(self, mask: Mask) -> Mask:
        if self.num_prefix_tokens == 0:
            return mask
        return Bordered(mask, self.num_prefix_tokens) if self.border is None else self.border(mask)


# torch.fx records each of these as one call: they branch on optional masks, and loop over tiles.


def _without_padding(x: Tensor, attn_mask: Tensor | TokenLayout | None) -> Tensor:
    """Zero what is padded: it leaves no trace, not even in gradients of the projections."""
    keep = TokenLayout.of(attn_mask).keep
    return x if keep is None else x.masked_fill(~_kept_keys(keep, *x.shape[:2])[:, :, None], 0.0)


def _attend(
    layer: MaskedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | TokenLayout | None,
    is_causal: bool,
) -> Tensor:
    layout = TokenLayout.of(attn_mask)
    if layout.stream is not None:
        return layout.stream.attend(q, k, v)
    if is_causal and layer.rpe is not None:
        raise ValueError(
            "is_causal cannot be combined with an rpe; give the rpe one_sided axes instead"
        )
    if layout.keep is not None:
        keep = _kept_keys(layout.keep, q.shape[0], q.shape[2])
        layout = TokenLayout(layout.grids, keep)
    return layer.attend(q, k, v, layout, is_causal)


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
