"""Preparation of items for shards: images and videos, as they are or smaller."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize

from ..errors import BadData
from ..images.decode import IMAGE_ENDINGS, ImageDecoder, check_resized
from ..videos.containers import (
    VIDEO_ENDINGS,
    Frame,
    FrameArchive,
    VideoDecoder,
    all_frames,
    check_all,
)
from .encode import frame_archive, h264


class Part(NamedTuple):
    """One sample of an item; `suffix`, after its key, tells several samples of one item apart."""

    suffix: str
    ending: str
    data: bytes


class Preparation(Protocol):
    """Everything that decides the bytes of the shards besides the source.

    Samples are shuffled by `seed`, or kept in order for None.
    """

    endings: ClassVar[Sequence[str]]

    @property
    def samples_per_shard(self) -> int: ...
    @property
    def seed(self) -> int | None: ...
    def record(self) -> dict[str, Any]:
        """Return all that decides the bytes, by name, as `_info.json` keeps it."""
        ...

    def prepare(self, data: bytes, ending: str) -> list[Part]:
        """Make the samples of an item; BadData if it does not decode."""
        ...


@dataclass(frozen=True)
class ImagePreparation:
    """How images become samples.

    Without `size` their bytes are kept; with it, the shorter side becomes `size` and the image a
    JPEG of this quality.
    """

    endings: ClassVar[Sequence[str]] = IMAGE_ENDINGS

    samples_per_shard: int = 1000
    size: int | None = None
    quality: int = 95
    seed: int | None = 0

    def __post_init__(self) -> None:
        _check_counts(self, "samples_per_shard", "size", "quality")

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def prepare(self, data: bytes, ending: str) -> list[Part]:
        image = ImageDecoder()(data)
        if self.size is None:
            return [Part("", ending, data)]
        return [Part("", "jpg", _jpeg(_resized(image, self.size), self.quality))]


@dataclass(frozen=True)
class VideoPreparation:
    """How videos become samples: one each, or one for each clip of `clip_frames` frames.

    Frames at the end that fill no clip are left out.

    Without `size` and `clip_frames` their bytes are kept. Otherwise video files become mp4 files by
    x264 (`crf`), and folders of frames keep their files, or get JPEGs of this quality with `size`.
    Videos of less than `min_frames` frames are bad.
    """

    endings: ClassVar[Sequence[str]] = VIDEO_ENDINGS

    samples_per_shard: int = 100
    size: int | None = None
    quality: int = 95
    crf: int = 20
    clip_frames: int | None = None
    min_frames: int = 1
    seed: int | None = 0

    def __post_init__(self) -> None:
        names = ("samples_per_shard", "size", "quality", "clip_frames", "min_frames")
        _check_counts(self, *names)
        if not 0 <= self.crf <= 51:
            raise ValueError(f"crf is a quality of x264, from 0 to 51, got {self.crf}")

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "medium": "video"}  # `recorded_modality` reads it back

    def prepare(self, data: bytes, ending: str) -> list[Part]:
        video = VideoDecoder()(data)
        least = max(self.min_frames, self.clip_frames or 1)
        if video.num_frames < least:
            raise BadData(f"too short: {video.num_frames} frames, at least {least} are needed")
        if self.clip_frames is None and self.size is None:
            check_all(video)
            return [Part("", ending, data)]
        if isinstance(video, FrameArchive):
            pieces = self._cut(self._files(video))
            return [Part(suffix, "zip", frame_archive(files)) for suffix, files in pieces]
        pieces = self._cut(_even(frame, self.size) for frame in all_frames(video))
        return [Part(suffix, "mp4", h264(fs, video.rate, self.crf)) for suffix, fs in pieces]

    def _files(self, video: FrameArchive) -> Iterator[tuple[str, bytes]]:
        """The image files of a video, each decoded once to see that it can be."""
        for frame, (ending, data) in zip(video, video.files(), strict=True):
            if self.size is None:
                yield ending, data
            else:
                image = _resized(Image.fromarray(frame), self.size)
                yield "jpg", _jpeg(image, self.quality)

    def _cut(self, frames: Iterable[Any]) -> Iterator[tuple[str, Iterable[Any]]]:
        """Cut frames into clips, with the suffixes of their keys."""
        if self.clip_frames is None:
            yield "", frames
            return
        frames, number = iter(frames), 0
        while len(clip := list(islice(frames, self.clip_frames))) == self.clip_frames:
            yield f"-clip{number:03d}", clip
            number += 1
        assert number, "a video that is long enough has a clip"


def _check_counts(preparation: object, *names: str) -> None:
    for name in names:
        value = getattr(preparation, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")


def _resized(image: Image.Image, size: int) -> Image.Image:
    """Resize an image to a shorter side of `size`."""
    check_resized(*image.size, size)
    return resize(image, [size], InterpolationMode.BICUBIC)  # pyright: ignore


def _jpeg(image: Image.Image, quality: int) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=quality)
    return stream.getvalue()


def _even(frame: Frame, size: int | None) -> Frame:
    """Resize a frame, if asked to, and give it the even sides that x264 needs."""
    image = Image.fromarray(frame)
    image = image if size is None else _resized(image, size)
    width, height = (side + side % 2 for side in image.size)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)
