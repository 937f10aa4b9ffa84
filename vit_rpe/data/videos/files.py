"""Video files, decoded by PyAV, or by torchcodec if FFmpeg's libraries are installed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor

from vit_rpe.extras import MissingExtra, import_extra

from ..errors import BadData
from .containers import Frame, as_bad_data, check_pixels, stacked


class PyAVVideo:
    """One video file in memory. Opening it reads the times of its packets and decodes nothing."""

    rate: Fraction | None

    def __init__(self, data: bytes, container: str, max_pixels: int):
        self._data, self._container, self._max_pixels = data, container, max_pixels
        self._av = pyav()
        if container == "mov":
            _check_boxes(data)
        with as_bad_data(), self._opened() as file:
            stream = self._stream(file)
            self.rate, size = stream.average_rate, (stream.height, stream.width)
            packets = [packet for packet in file.demux(stream) if packet.size]
            # what the edit list of a file that was cut leaves out is not decoded either
            times = [packet.pts for packet in packets if not packet.is_discard]
        if not times:
            raise BadData("a video without frames")
        self.num_frames = len(times)
        # some containers have no times, or the same one twice: then frames are counted
        timed = None not in times and len(set(times)) == len(times)
        self._times: list[int] = sorted(times) if timed else []
        check_pixels(*size, 1, max_pixels)

    def frames(self, numbers: Sequence[int]) -> Tensor:
        wanted, found = set(numbers), {}
        with as_bad_data():
            for number, frame in self._from(min(numbers)):
                if number in wanted:
                    found[number] = self._pixels(frame, len(wanted))
                if number >= max(numbers):
                    break
        return stacked([found[number] for number in numbers if number in found], numbers)

    def __iter__(self) -> Iterator[Frame]:
        with as_bad_data(), self._opened() as file:
            for frame in file.decode(self._stream(file)):
                yield self._pixels(frame, 1)

    def _from(self, first: int) -> Iterator[tuple[int, Any]]:
        """Decode and number frames from a key frame at or before `first`."""
        if self._times and 0 < first < self.num_frames:
            with self._opened() as file:
                stream = self._stream(file)
                file.seek(self._times[first], stream=stream)
                frames = file.decode(stream)
                head = next(frames, None)
                if head is not None and head.pts in self._times[: first + 1]:
                    number = self._times.index(head.pts)
                    yield number, head
                    yield from enumerate(frames, number + 1)
                    return
        # from the beginning, in a file of its own: a seek to the first time may miss it
        with self._opened() as file:
            yield from enumerate(file.decode(self._stream(file)))

    def _pixels(self, frame: Any, count: int) -> Frame:
        """Return the pixels upright; a frame can be larger than its container says."""
        if frame.is_corrupt:
            raise BadData("a frame is corrupt")
        check_pixels(frame.height, frame.width, count, self._max_pixels)
        return np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)

    def _opened(self) -> Any:
        return self._av.open(io.BytesIO(self._data), format=self._container)

    def _stream(self, file: Any) -> Any:
        if not file.streams.video:
            raise BadData("a file without a video stream")
        stream = file.streams.video[0]
        stream.thread_type = "NONE"  # a worker has one core
        stream.codec_context.options = {"max_pixels": str(self._max_pixels)}
        return stream


def _check_boxes(data: bytes) -> None:
    """Raise BadData for an mp4 or mov file that is cut off: FFmpeg would see a shorter video.

    It is a row of boxes, each after its size: the last one ends with the file.
    """
    start = 0
    while start + 8 <= len(data):
        size = int.from_bytes(data[start : start + 4])
        if size == 1:  # too large for four bytes
            size = int.from_bytes(data[start + 8 : start + 16])
        if size == 0:  # up to the end, wherever that is
            return
        if size < 8 or start + size > len(data):
            raise BadData(f"cut off: {len(data)} bytes, and a box from {start} to {start + size}")
        start += size


class TorchCodecVideo:
    """One video file in memory, decoded by torchcodec."""

    def __init__(self, data: bytes, container: str, max_pixels: int):
        with as_bad_data(), _torchcodec_is_there():
            from torchcodec.decoders import VideoDecoder  # pyright: ignore

            self._video = VideoDecoder(data, num_ffmpeg_threads=1)
            about = self._video.metadata
            self.num_frames = len(self._video)
        self.rate = Fraction(about.average_fps).limit_denominator(1001)
        self._size, self._max_pixels = (about.height, about.width), max_pixels
        check_pixels(*self._size, 1, max_pixels)

    def frames(self, numbers: Sequence[int]) -> Tensor:
        check_pixels(*self._size, len(numbers), self._max_pixels)
        with as_bad_data():
            return self._video.get_frames_at(list(numbers)).data

    def __iter__(self) -> Iterator[Frame]:
        with as_bad_data():
            for frame in self._video:
                yield frame.permute(1, 2, 0).numpy()


def pyav() -> Any:
    """Import PyAV; archives of frames do not need it."""
    return import_extra("av", "video", "decoding a video file, unlike a folder of frames,")


@contextmanager
def _torchcodec_is_there() -> Iterator[None]:
    """Raise MissingExtra if torchcodec, or FFmpeg's libraries for it, are not installed.

    It looks for them when it is first used; the sample is not to blame.
    """
    try:
        yield
    except ImportError:
        raise MissingExtra(
            "no torchcodec here: pip install torchcodec, or decode by pyav"
        ) from None
    except RuntimeError as error:
        if "libtorchcodec" not in str(error):
            raise
        raise MissingExtra(
            "torchcodec finds no FFmpeg libraries (libavcodec, ...): install them, or decode by "
            "pyav, which brings its own"
        ) from None
