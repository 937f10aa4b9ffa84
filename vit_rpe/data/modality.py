"""Images or videos: the one object that knows the difference.

A run, a tool or `verify` chooses a modality once and asks it from then on: which files a shard is
searched for, how bytes are decoded, what becomes of a sample, what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .errors import BadData
from .images.decode import IMAGE_ENDINGS, ImageDecoder
from .images.transform import ImageTransform
from .shards.index import Shards
from .shards.samples import Sample, SampleReader
from .videos.clips import ClipSampler, videos_of
from .videos.containers import VIDEO_ENDINGS, VideoDecoder, check_all, is_video
from .videos.transform import ClipTransform

LOOK_AT = 8  # samples that tell what kind of set it is


class Transform(Protocol):
    """The way from decoded samples to what a model is given.

    Called with an epoch, it makes the function from a sample to a tensor of bytes of this shape,
    for the workers. `normalize` is for whole batches, on the device of the model; where it draws,
    each sample has its key of random draws.
    """

    def __call__(self, epoch: int) -> Callable[[Any], Tensor]: ...
    def shape(self, epoch: int) -> tuple[int, ...]: ...
    def normalize(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor: ...


class Modality(Protocol):
    """Everything that differs between images and videos."""

    @property
    def sample(self) -> str:
        """The name of one input of a model: image or clip."""
        ...

    @property
    def unit(self) -> str:
        """The unit that training counts per second: img or clips."""
        ...

    @property
    def evaluated(self) -> str:
        """The unit that evaluation counts: img or videos, of which it may see several clips."""
        ...

    @property
    def command(self) -> str:
        """The command of make_shards that makes shards of a folder of such files."""
        ...

    @property
    def endings(self) -> Sequence[str]:
        """Endings of the members of a shard, in order of preference."""
        ...

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """The decoder of a sample; BadData if it cannot be decoded."""
        ...

    def check(self, data: bytes) -> None:
        """Decode all of a sample; BadData if any of it cannot be decoded."""
        ...

    def transform(self, side: int, training: bool, options: dict[str, Any]) -> Transform:
        """Make a transform from the options that timm names."""
        ...

    def groups(self, shards: Shards) -> NDArray[np.int64] | None:
        """Number the samples that are judged together; None if each is judged by itself."""
        ...

    def single_view(self) -> Modality:
        """Return this modality with one view of each sample in evaluation."""
        ...


@dataclass(frozen=True)
class Images:
    """Still images, decoded by PIL."""

    decode: Callable[[bytes], Any] = ImageDecoder()

    sample = "image"
    unit = "img"
    evaluated = "img"
    command = "folder"
    endings = IMAGE_ENDINGS

    def check(self, data: bytes) -> None:
        self.decode(data)

    def transform(self, side: int, training: bool, options: dict[str, Any]) -> ImageTransform:
        return ImageTransform(side, training, options)

    def groups(self, shards: Shards) -> None:
        return None

    def single_view(self) -> Images:
        return self


@dataclass(frozen=True)
class Videos:
    """Clips of `frames` frames; evaluation averages over `clips` x `crops` views of a video.

    The default of one frame is for those who decode whole videos and sample no clips.
    """

    frames: int = 1
    stride: int | None = 1
    clips: int = 1
    crops: int = 1
    backend: str = "pyav"

    sample = "clip"
    unit = "clips"
    evaluated = "videos"
    command = "video"
    endings = VIDEO_ENDINGS

    @property
    def decode(self) -> VideoDecoder:
        return VideoDecoder(self.backend)

    def check(self, data: bytes) -> None:
        check_all(self.decode(data))

    def transform(self, side: int, training: bool, options: dict[str, Any]) -> ClipTransform:
        sampler = ClipSampler(self.frames, self.stride, self.clips)
        return ClipTransform(side, sampler, training, self.crops, options)

    def groups(self, shards: Shards) -> NDArray[np.int64] | None:
        return videos_of(shards)

    def single_view(self) -> Videos:
        return Videos(self.frames, self.stride, backend=self.backend)


def modality_of(
    num_frames: int | None,
    *,
    stride: int | None = 1,
    clips: int = 1,
    crops: int = 1,
    backend: str = "pyav",
) -> Modality:
    """Choose videos if there is a number of frames, otherwise images."""
    return Images() if num_frames is None else Videos(num_frames, stride, clips, crops, backend)


def recorded_modality(made: Mapping[str, Any]) -> Modality:
    """Return the modality of shards, from what `_info.json` records of their making."""
    return Videos() if made.get("medium") == "video" else Images()


def holds_videos(shards: Shards) -> bool:
    """Tell whether the first samples that can be read are videos."""
    first = SampleReader(shards).read(np.arange(min(LOOK_AT, shards.num_samples)))
    return any(isinstance(sample, Sample) and is_video(sample.data) for sample in first)


def try_decoder(modality: Modality, shards: Shards) -> None:
    """Decode the first sample: a decoder that is not installed is an error now, not in a worker."""
    for sample in SampleReader(shards).read(np.array([0])):
        if isinstance(sample, Sample):
            with suppress(BadData):
                modality.decode(sample.data)
