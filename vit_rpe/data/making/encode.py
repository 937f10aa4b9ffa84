"""Frames to the bytes of a video, the same bytes every time."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from fractions import Fraction

from ..videos.containers import Frame

DEFAULT_RATE = Fraction(25)


def frame_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Image files, each by its ending and bytes, as the zip archive that VideoDecoder reads."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for number, (ending, data) in enumerate(files):
            # a ZipInfo has a fixed date, where a plain name would have today's
            archive.writestr(zipfile.ZipInfo(f"{number:06d}.{ending}"), data)
    return stream.getvalue()


def h264(frames: Iterable[Frame], rate: Fraction | None = None, crf: int = 20) -> bytes:
    """An mp4 file by x264; `crf` is its constant of quality, smaller is better. Sides are even."""
    from ..videos.files import pyav

    av = pyav()
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as file:
        options = {"crf": str(crf), "threads": "1"}
        video = file.add_stream("libx264", rate=rate or DEFAULT_RATE, options=options)
        video.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                video.height, video.width = frame.shape[:2]
            file.mux(video.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(video.encode())
    return stream.getvalue()
