"""What an attention layer remembers of a clip that comes slice by slice.

A memory attends in the layer's place: it takes queries, keys and values of the prefix tokens
and of the newest slice of the grid, and gives what the layer would give them within the whole clip
so far. The prefix tokens read all slices; they start anew at each step, and no patch reads them.

Shapes: B samples, H heads, p prefix tokens, P patches of a slice, T slices, M features, D value
channels.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.features.autocast import without_autocast
from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz

from .past import Room, Sums, past_of
from .reference import safe_denominator
from .softmax import log_weights, softmax_attention


class Memory(Protocol):
    @property
    def limit(self) -> str | None:
        """Why it cannot go on beyond the length of its mask, if it cannot."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One step: q, k, v (B, H, p + P, C / H) -> the same."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


def _border_and_grid(mask: Mask) -> tuple[Bordered | None, Exponential | Toeplitz]:
    """The border of a mask that a stream can follow, and its mask on a grid of time and space."""
    border, inner = (mask, mask.inner) if isinstance(mask, Bordered) else (None, mask)
    if not isinstance(inner, Exponential | Toeplitz) or len(inner.grid) != 3:
        grid = getattr(inner, "grid", "none")
        raise ValueError(
            "a stream needs a mask on a grid of time, height and width, "
            f"got {type(inner).__name__} on the grid {grid}"
        )
    assert border is None or (border.column is not None and not border.column.any())
    return border, inner


class LinearMemory:
    """Linear attention: sums over the past, or the past itself, as the mask allows (`past.py`).

    The mask is one-sided along time. What depends on it alone is computed once, here.
    """

    def __init__(self, mask: Mask, features: FeatureMap, floor: float, room: Room):
        if floor or not features.nonnegative:
            raise ValueError(
                "a stream needs features without negative values and floor=0, got "
                f"{type(features).__name__} and floor={floor}"
            )
        self._features = features
        self._border, inner = _border_and_grid(mask)
        self._prefix = 0 if self._border is None else self._border.prefix
        self._past = past_of(inner, room)
        self._all = Sums()
        self._scale: Tensor | None = None
        self.limit = self._past.limit

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype = v.dtype
        common = reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype), torch.float32)
        with without_autocast(q.device.type):
            features, p = self._features, self._prefix
            q, k = features.query(features.prepare(q)), features.prepare(k)
            v = F.pad(v.to(common), (0, 1), value=1.0)  # one more column: the normaliser
            k1, fade = self._scaled(*features.scaled_key(k[..., p:, :]))
            sums = self._past.step(q[..., p:, :], k1, v[..., p:, :], fade)
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
        assert self._border is not None
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
        self._past.reset()
        self._all.reset()
        self._scale = None


class SoftmaxMemory:
    """Softmax attention: all keys and values so far, behind those of the prefix tokens."""

    limit = "softmax attention keeps all keys, and has room for so many frames"

    def __init__(self, mask: Mask):
        border, mask = _border_and_grid(mask)
        self._prefix = 0 if border is None else border.prefix
        self._length = mask.length
        place = mask.length // mask.grid[0]
        # rows depend on the distance in time alone: those of the last slice hold all others
        self._bias = log_weights(mask.rows(mask.length - place, mask.length))  # (H, P, T P)
        rows = None if border is None else border.rows(0, self._prefix)
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
        out = softmax_attention(q[..., p:, :], keys[..., p:, :], values[..., p:, :], bias)
        if self._prefix_bias is None:
            return out
        bias = self._prefix_bias[..., : p + now]
        return torch.cat([softmax_attention(q[..., :p, :], keys, values, bias), out], -2)

    def reset(self) -> None:
        self._keys = self._values = None
        self._seen = 0
