"""Bytes of a video to frames: named, safe containers only, and never more pixels than allowed.

A video is a file (mp4, mov, webm, mkv, avi), decoded by PyAV or torchcodec, or the images of a
folder in one zip archive, stored and not compressed, decoded by PIL. It is opened first; frames are
decoded when they are asked for, those of one clip and no others.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from os.path import splitext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit_rpe.extras import MissingExtra
from vit_rpe.messages import cut

from ..errors import BadData
from ..images.decode import IMAGE_ENDINGS, MAX_CLIP_PIXELS, MAX_PIXELS, ImageDecoder

# in order of preference, should a sample have several
VIDEO_ENDINGS = ("mp4", "webm", "mkv", "avi", "mov", "m4v", "zip")
VIDEO_BACKENDS = ("pyav", "torchcodec")
PHOTOS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"avif")  # in a container made for videos
Frame = NDArray[np.uint8]  # (H, W, 3)


class Video(Protocol):
    """An opened video. What cannot be decoded raises BadData."""

    @property
    def num_frames(self) -> int: ...
    @property
    def rate(self) -> Fraction | None:
        """Frames per second; None if the file does not say."""
        ...

    def frames(self, numbers: Sequence[int]) -> Tensor:
        """Decode the frames of these numbers to bytes, (T, 3, H, W)."""
        ...

    def __iter__(self) -> Iterator[Frame]:
        """Decode all frames, one after the other."""
        ...


@dataclass(frozen=True)
class VideoDecoder:
    """Open a video. Backends may differ in the last bit of a pixel, so a run stays with one."""

    backend: str = "pyav"
    max_pixels: int = MAX_PIXELS  # of a frame

    def __post_init__(self) -> None:
        if self.backend not in VIDEO_BACKENDS:
            raise ValueError(
                f"a backend of videos is one of {', '.join(VIDEO_BACKENDS)}, got {self.backend!r}"
            )

    def __call__(self, data: bytes) -> Video:
        container = _container(data)
        if container == "zip":
            return FrameArchive(data, ImageDecoder(max_pixels=self.max_pixels))
        from . import files as video_files  # PyAV and torchcodec are optional

        open_file = {"pyav": video_files.PyAVVideo, "torchcodec": video_files.TorchCodecVideo}
        return open_file[self.backend](data, container, self.max_pixels)


def is_video(data: bytes) -> bool:
    """Tell whether these bytes are of one of the kinds that a VideoDecoder opens."""
    try:
        return bool(_container(data))
    except BadData:
        return False


def _container(data: bytes) -> str:
    """Tell the kind of file by its first bytes.

    FFmpeg is told and never guesses: among the kinds that it would try are playlists, which name
    other files.
    """
    if data[:4] == b"PK\3\4":
        return "zip"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:11] == b"AVI":
        return "avi"
    if data[4:8] == b"ftyp" and data[8:12] in PHOTOS:
        raise BadData("a photo in HEIC or AVIF, not a video")
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    raise BadData("not a video in one of mp4, mov, webm, mkv, avi, or a zip archive of frames")


def all_frames(video: Video) -> Iterator[Frame]:
    """Decode every frame: a video that breaks off is bad, which opening it does not show."""
    count = 0
    for frame in video:
        count += 1
        yield frame
    if count < video.num_frames:
        raise BadData(f"cut off: {count} of {video.num_frames} frames decode")


def check_all(video: Video) -> None:
    """Decode every frame and keep none; BadData if one does not decode."""
    for _ in all_frames(video):
        pass


class FrameArchive:
    """The frames of a folder, as image files in a zip archive; `frame_10` comes after `frame_9`."""

    rate = None

    def __init__(self, data: bytes, decode: Callable[[bytes], object]):
        self._decode = decode
        with as_bad_data():
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            everything = self._archive.infolist()
            members = [m for m in everything if ending_of(m.filename) in IMAGE_ENDINGS]
            self._names = sorted((member.filename for member in members), key=natural)
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise BadData("the frames of a zip archive must be stored, not compressed")
        if not members:
            raise BadData("a zip archive without frames")

    @property
    def num_frames(self) -> int:
        return len(self._names)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the ending and the bytes of each frame, as they are."""
        for name in self._names:
            with as_bad_data():
                data = self._archive.read(name)
            yield ending_of(name), data

    def frames(self, numbers: Sequence[int]) -> Tensor:
        frames: list[Frame] = []
        for number in numbers:
            frames.append(self._frame(number))
            height, width = frames[-1].shape[:2]
            check_pixels(height, width, len(numbers), MAX_PIXELS)
        return stacked(frames, numbers)

    def __iter__(self) -> Iterator[Frame]:
        return map(self._frame, range(self.num_frames))

    def _frame(self, number: int) -> Frame:
        with as_bad_data():
            return np.asarray(self._decode(self._archive.read(self._names[number])))


def ending_of(path: str) -> str:
    """Return the ending of a name in small letters, without its dot; jpg for jpeg, as in timm."""
    ending = splitext(path)[1].lower().lstrip(".")
    return "jpg" if ending == "jpeg" else ending


def natural(path: str) -> list[tuple[int, str]]:
    """Return a sorting key of names: numbers by their value, texts between them by the alphabet."""
    parts = re.split(r"(\d+)", path)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def stacked(frames: Sequence[Frame], numbers: Sequence[int]) -> Tensor:
    """Stack frames to (T, 3, H, W); BadData if one is missing or of another size."""
    if len(frames) < len(numbers):
        raise BadData(f"cut off: {len(frames)} of the frames {list(numbers)} decode")
    sizes = {frame.shape[:2] for frame in frames}
    if len(sizes) > 1:
        raise BadData(f"frames of different sizes: {sorted(sizes)}")
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


def check_pixels(height: int, width: int, frames: int, max_pixels: int) -> None:
    """Raise BadData if a frame, or all frames together, have too many pixels."""
    if height * width > max_pixels or height * width * frames > MAX_CLIP_PIXELS:
        raise BadData(f"decompression bomb: {frames} frames of {width} x {height} pixels")


@contextmanager
def as_bad_data() -> Iterator[None]:
    """Raise BadData for whatever a decoder raises."""
    try:
        yield
    except (BadData, MissingExtra):
        raise
    except Exception as error:
        raise BadData(f"{type(error).__name__}: {cut(error)}") from None
