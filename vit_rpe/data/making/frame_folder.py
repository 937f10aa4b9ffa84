"""A video that is a folder of images, one for each frame."""

from __future__ import annotations

import os
from pathlib import Path

from vit_rpe.files import read_regular

from ..errors import BadData
from ..shards.layout import IMAGE_ENDINGS
from ..videos.containers import ending_of, natural
from .encode import frame_archive


def frame_files(folder: Path) -> list[Path]:
    """The images in a folder; `frame_10` comes after `frame_9`."""
    names = [entry.name for entry in os.scandir(folder) if ending_of(entry.name) in IMAGE_ENDINGS]
    return [folder / name for name in sorted(names, key=natural)]


def folder_archive(folder: Path) -> bytes:
    """The frames of a folder, with their bytes as they are, as one archive."""
    files = frame_files(folder)
    if not files:
        raise BadData(f"the folder {folder.name!r} has no frames ({', '.join(IMAGE_ENDINGS)})")
    return frame_archive((ending_of(file.name), read_regular(file)) for file in files)
