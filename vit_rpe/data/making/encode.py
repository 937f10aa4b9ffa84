"""Frames to the bytes of a video, an archive or an mp4 file, the same bytes every time."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from vit_rpe.files import read_regular

from ..errors import BadData
from ..images.decode import IMAGE_ENDINGS
from ..videos.containers import Frame, ending_of, natural
from ..videos.files import pyav

DEFAULT_RATE = Fraction(25)


def frame_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Pack image files, given by ending and bytes, into a zip archive for VideoDecoder."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for number, (ending, data) in enumerate(files):
            # a ZipInfo has a fixed date, where a plain name would have today's
            archive.writestr(zipfile.ZipInfo(f"{number:06d}.{ending}"), data)
    return stream.getvalue()


def frame_files(folder: Path) -> list[Path]:
    """List the images in a folder; `frame_10` comes after `frame_9`."""
    names = [entry.name for entry in os.scandir(folder) if ending_of(entry.name) in IMAGE_ENDINGS]
    return [folder / name for name in sorted(names, key=natural)]


def folder_archive(folder: Path) -> bytes:
    """Pack the frames of a folder into an archive, with their bytes as they are."""
    files = frame_files(folder)
    if not files:
        raise BadData(f"the folder {folder.name!r} has no frames ({', '.join(IMAGE_ENDINGS)})")
    return frame_archive((ending_of(file.name), read_regular(file)) for file in files)


def h264(frames: Iterable[Frame], rate: Fraction | None = None, crf: int = 20) -> bytes:
    """Encode an mp4 file by x264; a smaller `crf` is a better quality. Sides must be even."""
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
