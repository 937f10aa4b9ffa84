"""Clips of videos: which frames they are, and which samples are clips of one video."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import BadData, ShardError
from ..shards.index import Shards

CLIP = re.compile(rb"-clip\d+$")
"""The end of a key that is one of several clips of a video: the rest names the video."""


@dataclass(frozen=True)
class ClipSampler:
    """A choice of the frames of a video that make a clip of `frames` frames.

    With a `stride`, every stride-th frame from some frame on. Without one, a clip spans the whole
    video: one frame of each of `frames` equal parts. Training draws a clip; evaluation takes
    `clips` of them, spread evenly. A video that is too short is bad.
    """

    frames: int
    stride: int | None = 1
    clips: int = 1

    def __post_init__(self) -> None:
        for name in ("frames", "stride", "clips"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"a sampler of clips needs {name} >= 1, got {value}")

    def random(self, length: int) -> list[int]:
        """Draw the frames of a clip from torch's generator."""
        room = self._room(length)
        if self.stride is None:
            within = torch.rand(self.frames, dtype=torch.float64)
            return self._spread(length, within)
        start = int(torch.randint(room + 1, ()))
        return [start + i * self.stride for i in range(self.frames)]

    def uniform(self, length: int) -> list[list[int]]:
        """Spread `clips` clips evenly; a single one is in the middle."""
        room = self._room(length)
        middles = [(i + 0.5) / self.clips for i in range(self.clips)]
        if self.stride is None:
            return [self._spread(length, torch.full((self.frames,), m).double()) for m in middles]
        ends = max(self.clips - 1, 1)
        starts = [round(room * i / ends) for i in range(self.clips)]
        starts = [room // 2] if self.clips == 1 else starts
        return [[start + i * self.stride for i in range(self.frames)] for start in starts]

    def _room(self, length: int) -> int:
        """Return the last frame that a clip can start at; BadData if the video is too short."""
        span = (self.frames - 1) * (self.stride or 1) + 1
        if length < span:
            raise BadData(f"too short: {length} frames, a clip needs {span}")
        return length - span

    def _spread(self, length: int, within: Tensor) -> list[int]:
        """Take one frame of each part; `within` says where in its part, from 0 to 1."""
        parts = torch.arange(self.frames, dtype=torch.float64)
        return ((parts + within) * length / self.frames).long().clamp(max=length - 1).tolist()


def videos_of(shards: Shards) -> NDArray[np.int64] | None:
    """Number the video that each sample is a clip of; None if samples are whole videos.

    Clips of a video have its key, followed by `-clip000`, `-clip001`, ...
    """
    keys = shards.rows["key"].tolist()
    names = [CLIP.sub(b"", key) for key in keys]
    if names == keys:
        return None
    _, videos = np.unique(names, return_inverse=True)
    labels = shards.rows["label"].astype(np.int64)
    largest = np.full(videos.max() + 1, -1)
    np.maximum.at(largest, videos, labels)
    for i in np.flatnonzero((labels >= 0) & (labels != largest[videos]))[:1]:
        raise ShardError(
            f"the clips of the video {names[i].decode(errors='replace')!r} have different labels, "
            f"{labels[i]} and {largest[videos[i]]}"
        )
    return videos
