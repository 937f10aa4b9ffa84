"""Whole files that others name: a FIFO would block for ever, and /dev/zero never ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .messages import shown

LARGEST = 1 << 32  # of anything that is read as a whole: 4 GiB


def read_regular(path: str | Path, largest: int = LARGEST) -> bytes:
    """Read a file, or what a link leads to, if it is a regular file of at most `largest` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(f"{shown(str(path))} is no name of a file: {error}") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size > largest:
            raise OSError(f"{path} has {status.st_size} bytes, at most {largest} are read")
        return file.read(largest)
