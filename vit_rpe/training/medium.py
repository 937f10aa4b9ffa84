"""Images or videos: how shards are read and what becomes of a sample, by a recipe or a tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vit_rpe.data import (
    VIDEO_ENDINGS,
    BadData,
    ClipSampler,
    ClipTransform,
    ImageDecoder,
    ImageTransform,
    Sample,
    SampleReader,
    Shards,
    Transform,
    VideoDecoder,
)
from vit_rpe.data.shards.layout import IMAGE_ENDINGS
from vit_rpe.data.videos.containers import is_video

from .recipe.schema import Recipe

LOOK_AT = 8  # samples that tell what kind of set it is


class Medium(Protocol):
    @property
    def sample(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def evaluated(self) -> str: ...
    @property
    def command(self) -> str: ...
    def single_view(self) -> Medium: ...
    @property
    def endings(self) -> Sequence[str]: ...
    @property
    def decode(self) -> Callable[[bytes], Any]: ...
    def transform(self, side: int, training: bool, options: dict[str, Any]) -> Transform: ...


@dataclass(frozen=True)
class Images:
    endings = IMAGE_ENDINGS
    decode = ImageDecoder()
    sample, unit, evaluated, command = "image", "img", "img", "folder"

    def single_view(self) -> Images:
        return self

    def transform(self, side: int, training: bool, options: dict[str, Any]) -> ImageTransform:
        return ImageTransform(side, training, options)


@dataclass(frozen=True)
class Videos:
    """Clips of `frames` frames; evaluation averages over `clips` x `crops` views of a video."""

    frames: int
    stride: int | None = 1
    clips: int = 1
    crops: int = 1
    backend: str = "pyav"

    endings = VIDEO_ENDINGS
    sample, unit, evaluated, command = "clip", "clips", "videos", "video"

    def single_view(self) -> Videos:
        return Videos(self.frames, self.stride, backend=self.backend)

    @property
    def decode(self) -> VideoDecoder:
        return VideoDecoder(self.backend)

    def transform(self, side: int, training: bool, options: dict[str, Any]) -> ClipTransform:
        sampler = ClipSampler(self.frames, self.stride, self.clips)
        return ClipTransform(side, sampler, training, self.crops, options)


def medium_of(recipe: Recipe) -> Medium:
    if recipe.num_frames is None:
        return Images()
    clips, crops = recipe.val_clips, recipe.val_crops
    return Videos(recipe.num_frames, recipe.frame_stride, clips, crops, recipe.video_decoder)


def holds_videos(shards: Shards) -> bool:
    """Whether the first samples that can be read are videos."""
    first = SampleReader(shards).read(np.arange(min(LOOK_AT, shards.num_samples)))
    return any(isinstance(sample, Sample) and is_video(sample.data) for sample in first)


def try_decoder(medium: Medium, shards: Shards) -> None:
    """Decode the first sample: a decoder that is not installed is an error now, not in a worker."""
    for sample in SampleReader(shards).read(np.array([0])):
        if isinstance(sample, Sample):
            with suppress(BadData):
                medium.decode(sample.data)
