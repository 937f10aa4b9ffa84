"""The memory of linear attention for the frames that have passed, of three kinds.

Each kind takes the newest slice of a grid (time, height, width), adds it to what it keeps, and
returns the sums of the slice's queries over all keys so far. What it keeps is first multiplied by
`fade`, (B, H, 1, 1), if there is one: the features of the new keys may be of another scale.

Shapes: B samples, H heads, P = Y X cells of a slice, M features, D value columns (the last one of
ones), R terms, T slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vit_rpe.masks import Exponential, Toeplitz


class KeyMemory(Protocol):
    """The keys and values of earlier slices, as a layer keeps them."""

    @property
    def why_bounded(self) -> str | None:
        """Why the stream must stop at the mask's length; None if it need not."""
        ...

    def step(self, q: Tensor, k: Tensor, v: Tensor, fade: Tensor | None) -> Tensor:
        """Add the newest slice, q, k (B, H, P, M) and v (B, H, P, D) -> sums (B, H, P, D)."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


def key_memory(mask: Exponential | Toeplitz, scratch: Scratch) -> KeyMemory:
    """The smallest memory that serves a mask which is one-sided along its first axis."""
    if isinstance(mask, Toeplitz):
        return KeyValueCache(mask)
    if not mask.rates.any():
        return RunningSum(mask.weights.sum(-1))
    return DecayState(mask, scratch)


class Scratch:
    """Buffers that all layers of a stream use in turn: allocating takes longer than filling."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """The buffer of that name, made again if its shape or dtype has changed."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tuple(shape) or buffer.dtype != like.dtype:
            buffer = self._buffers[name] = like.new_empty(*shape)
        return buffer


class RunningSum:
    """All keys weigh the same: one M x D matrix for each head, `S = sum_j k_j v_j^T`."""

    why_bounded = None

    def __init__(self, weight: Tensor | None = None):
        self._weight = None if weight is None else weight[..., None, None]  # (H, 1, 1)
        self._sum: Tensor | None = None

    def step(self, q: Tensor, k: Tensor, v: Tensor, fade: Tensor | None) -> Tensor:
        self.add(k, v, fade)
        return self.read(q)

    def add(self, k: Tensor, v: Tensor, fade: Tensor | None) -> None:
        new, old = k.mT @ v, self._sum
        if old is not None:
            new += old if fade is None else old * fade
        self._sum = new

    def read(self, q: Tensor) -> Tensor:
        assert self._sum is not None
        result = q @ self._sum
        return result if self._weight is None else result * self._weight.to(result.dtype)

    def reset(self) -> None:
        self._sum = None


class DecayState:
    """Weights that decay: one M x D matrix for each head, term and cell, however long the clip.

        S_i <- exp(-rate_t) S_i + w sum_j exp(-rate_y |y_i - y_j| - rate_x |x_i - x_j|) k_j v_j^T

    The sum over j is one matrix product along each axis; the first of them also makes k v^T.
    """

    def __init__(self, mask: Exponential, scratch: Scratch):
        _, *self._sides = mask.grid
        dtype = torch.promote_types(mask.rates.dtype, torch.float32)
        rates, weights = mask.rates.to(dtype), mask.weights.to(dtype)
        self._decay = (-rates[..., 0]).exp()  # (H, R)
        down, across = (self._kernel(mask, rates, axis) for axis in (1, 2))
        self._down = (weights[..., None, None] * down.mT).contiguous()  # (H, R, Y_j, Y_i)
        self._across = across  # (H, R, X, X)
        self._scratch = scratch
        self._states: Tensor | None = None  # (B, H, R, X, Y, M, D)
        negative = bool((rates[..., 0] < 0).any())
        grows = "a head's rate along time is negative: its mask grows"
        self.why_bounded = grows if negative else None

    @staticmethod
    def _kernel(mask: Exponential, rates: Tensor, axis: int) -> Tensor:
        cell = torch.arange(mask.grid[axis], device=rates.device)
        offset = cell[:, None] - cell
        kernel = (-rates[..., axis, None, None] * offset.abs()).exp()
        return kernel.masked_fill(offset < 0, 0.0) if axis in mask.one_sided else kernel

    def step(self, q: Tensor, k: Tensor, v: Tensor, fade: Tensor | None) -> Tensor:
        q, k, v = map(self._by_columns, (q, k, v))
        self._add(k, v, fade)
        assert self._states is not None
        result = (q[..., None, :] @ self._states)[..., 0, :].sum(2)
        return result.transpose(2, 3).flatten(2, 3)

    def _by_columns(self, x: Tensor) -> Tensor:
        """(B, H, P, ...) -> (B, H, 1, X, Y, ...), also in memory: products keep that order."""
        return x.unflatten(-2, self._sides).transpose(2, 3).contiguous()[:, :, None]

    def _add(self, k: Tensor, v: Tensor, fade: Tensor | None) -> None:
        down, across, decay = (x.to(k) for x in (self._down, self._across, self._decay))
        (x, y, m), d = k.shape[3:], v.shape[-1]
        lead = (k.shape[0], *decay.shape)
        keys = self._scratch.buffer("keys", (*lead, x, y, y, m), k)
        torch.mul(down[:, :, None, ..., None], k[..., None, :], out=keys)
        sent = self._scratch.buffer("sent", (*lead, x, y * m, d), v)
        torch.matmul(keys.flatten(5).mT, v, out=sent)
        if self._states is None:
            self._states = v.new_zeros(*lead, x, y, m, d)
        states = self._states.flatten(0, 2).flatten(2)
        states *= (decay if fade is None else decay * fade[..., 0]).expand(lead).reshape(-1, 1, 1)
        states.baddbmm_(across.expand(*lead, x, x).flatten(0, 2), sent.flatten(0, 2).flatten(2))

    def reset(self) -> None:
        self._states = None


class KeyValueCache:
    """Any table: all keys and values so far, explicit attention of the newest slice to them.

    Rows of the mask depend on time only by the distance: those of the last slice hold all others.
    """

    why_bounded = "its masks are tables for a fixed number of frames"

    def __init__(self, mask: Toeplitz):
        slices, self._length = mask.grid[0], mask.length
        cells = self._length // slices
        rows = mask.rows(self._length - cells, self._length)  # (H, P, T P)
        self._rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._seen = 0

    def step(self, q: Tensor, k: Tensor, v: Tensor, fade: Tensor | None) -> Tensor:
        if self._keys is None or self._values is None:
            self._keys, self._values = (
                x.new_empty(*x.shape[:2], self._length, x.shape[-1]) for x in (k, v)
            )
        seen, now = self._seen, self._seen + k.shape[-2]
        if fade is not None:
            self._keys[..., :seen, :] *= fade
        self._keys[..., seen:now, :] = k
        self._values[..., seen:now, :] = v
        self._seen = now
        weights = q @ self._keys[..., :now, :].mT
        weights *= self._rows[..., self._length - now :].to(weights.dtype)
        return weights @ self._values[..., :now, :]

    def reset(self) -> None:
        self._keys = self._values = None
        self._seen = 0
