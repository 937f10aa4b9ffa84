"""The state of an attention layer in a clip that comes slice by slice.

A state attends instead of the layer: it takes queries, keys and values of the prefix tokens and of
the newest slice of the grid, and returns what the layer would return for them within the whole clip
so far. The prefix tokens read all slices; they start again at each step, and no patch reads them.

Shapes: B samples, H heads, p prefix tokens, P patches of a slice, T slices, M features, D value
channels.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz
from vit_rpe.precision import without_autocast

from ..reference import log_weights, safe_denominator
from ..structure import common_dtype, split_border
from .key_memory import RunningSum, Scratch, key_memory


class LayerState(Protocol):
    """The slices so far, as one attention layer keeps them."""

    @property
    def why_bounded(self) -> str | None:
        """Why the stream must stop at the mask's length; None if it need not."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Take one step: q, k, v (B, H, p + P, C / H) -> the same."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


def _border_and_grid(mask: Mask) -> tuple[Bordered, Exponential | Toeplitz]:
    """The border of a mask that a stream can follow, and its mask on a grid of time and space."""
    found, inner = split_border(mask)
    border = Bordered(inner, 0) if found is None else found
    if not isinstance(inner, Exponential | Toeplitz) or len(inner.grid) != 3:
        grid = getattr(inner, "grid", "none")
        raise ValueError(
            "a stream needs a mask on a grid of time, height and width, "
            f"got {type(inner).__name__} on the grid {grid}"
        )
    read_only = border.column is not None and not border.column.any()
    assert border.prefix == 0 or read_only
    return border, inner


class LinearState:
    """Linear attention: sums over earlier keys, or the keys themselves, as the mask allows.

    The mask is one-sided along time. What depends only on it is computed once, here.
    """

    def __init__(self, mask: Mask, features: FeatureMap, floor: float, scratch: Scratch):
        if floor or not features.nonnegative:
            raise ValueError(
                "a stream needs features without negative values and floor=0, got "
                f"{type(features).__name__} and floor={floor}"
            )
        self._features = features
        self._border, inner = _border_and_grid(mask)
        self._prefix = self._border.prefix
        self._keys = key_memory(inner, scratch)
        self._all = RunningSum()
        self._scale: Tensor | None = None
        self.why_bounded = self._keys.why_bounded

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype = v.dtype
        common = common_dtype(q, k, v)
        with without_autocast(q.device.type):
            features, p = self._features, self._prefix
            q, k = q.to(common), k.to(common)
            q, k = features.query(features.cast_and_normalize(q)), features.cast_and_normalize(k)
            v = F.pad(v.to(common), (0, 1), value=1.0)  # one more column: the normalizer
            k1, fade = self._scaled(*features.scaled_key(k[..., p:, :]))
            sums = self._keys.step(q[..., p:, :], k1, v[..., p:, :], fade)
            if p:
                self._all.add(k1, v[..., p:, :], fade)
                prefix = self._read_all(q[..., :p, :], k[..., :p, :], v[..., :p, :])
                sums = torch.cat([prefix, sums], -2)
            total = sums[..., -1:]
            return (sums[..., :-1] / safe_denominator(total, total)).to(dtype)

    def _scaled(self, k: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The new keys in the scale of all so far, and what brings the old ones to it."""
        old = self._scale
        if own is None or old is None:
            self._scale = own
            return k, None
        self._scale = torch.maximum(old, own)
        return k * (own - self._scale).exp(), (old - self._scale).exp()

    def _read_all(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The rows of the prefix tokens, which read themselves and every patch so far."""
        k, own = self._features.scaled_key(k)
        corner, patches = q @ k.mT, self._all.read(q)
        if own is not None and self._scale is not None:
            largest = torch.maximum(own, self._scale)
            corner = corner * (own - largest).exp()
            patches = patches * (self._scale - largest).exp()
        if self._border.corner is not None:
            corner = corner * self._border.corner.to(corner.dtype)
        if self._border.row is not None:
            patches = patches * self._border.row[..., None].to(patches.dtype)
        return corner @ v + patches

    def reset(self) -> None:
        self._keys.reset()
        self._all.reset()
        self._scale = None


class SoftmaxState:
    """Softmax attention: all keys and values so far, behind those of the prefix tokens."""

    why_bounded = "softmax attention keeps all keys, and has a fixed number of frames"

    def __init__(self, mask: Mask):
        border, mask = _border_and_grid(mask)
        self._prefix = border.prefix
        self._length = mask.length
        cells = mask.length // mask.grid[0]
        # rows depend on time only by the distance: those of the last slice hold all others
        self._bias = log_weights(mask.rows(mask.length - cells, mask.length))  # (H, P, T P)
        rows = border.rows(0, self._prefix) if self._prefix else None
        self._prefix_bias = None if rows is None else log_weights(rows)  # (H, p, p + T P)
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._seen = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._keys is None or self._values is None:
            length = self._prefix + self._length
            self._keys, self._values = (
                x.new_empty(*x.shape[:2], length, x.shape[-1]) for x in (k, v)
            )
        p, seen, now = self._prefix, self._seen, self._seen + k.shape[-2] - self._prefix
        for kept, new in ((self._keys, k), (self._values, v)):
            kept[..., :p, :] = new[..., :p, :]
            kept[..., p + seen : p + now, :] = new[..., p:, :]
        self._seen = now
        keys, values = self._keys[..., : p + now, :], self._values[..., : p + now, :]
        bias = self._bias[..., self._length - now :]
        out = _attend_with_bias(q[..., p:, :], keys[..., p:, :], values[..., p:, :], bias)
        if self._prefix_bias is None:
            return out
        bias = self._prefix_bias[..., : p + now]
        return torch.cat([_attend_with_bias(q[..., :p, :], keys, values, bias), out], -2)

    def reset(self) -> None:
        self._keys = self._values = None
        self._seen = 0


def _attend_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Softmax attention of some queries; one that sees nothing gets zeros."""
    # expanded by hand: the fused kernels want whole leading dims
    bias = bias.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0.0)
