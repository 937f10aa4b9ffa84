"""A video that is a folder of images, one for each frame."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .encode import frame_archive
from .errors import BadData
from .layout import IMAGE_ENDINGS


def frame_files(folder: Path) -> list[Path]:
    """The images in a folder; `frame_10` comes after `frame_9`."""
    found = [Path(entry.path) for entry in os.scandir(folder)]
    return sorted((path for path in found if ending_of(path) in IMAGE_ENDINGS), key=_natural)


def folder_archive(folder: Path) -> bytes:
    """The frames of a folder, with their bytes as they are, as one archive."""
    files = frame_files(folder)
    if not files:
        raise BadData(f"the folder {folder.name!r} has no frames ({', '.join(IMAGE_ENDINGS)})")
    return frame_archive((ending_of(file), file.read_bytes()) for file in files)


def ending_of(path: str | Path) -> str:
    """In small letters and without its dot; jpeg is jpg, which timm looks for."""
    ending = os.path.splitext(path)[1].lower().lstrip(".")
    return "jpg" if ending == "jpeg" else ending


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers by their value, between texts by the alphabet."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]
