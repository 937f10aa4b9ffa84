"""The folder that a converted model is written to."""

from __future__ import annotations

from pathlib import Path


def check_output(directory: Path, overwrite: bool) -> None:
    """Refuse a file, and a folder with something in it unless it may be overwritten."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is not a directory")
    if directory.is_dir() and any(directory.iterdir()) and not overwrite:
        raise ValueError(f"{directory} is not empty; --overwrite writes there all the same")
