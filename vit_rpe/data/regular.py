"""Whole files that others name: a FIFO would block for ever, and /dev/zero never ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .messages import shown

LARGEST = 1 << 32  # of anything that is read as a whole: 4 GiB


def read_regular(path: str | Path, largest: int = LARGEST) -> bytes:
    """Read a file, or what a link leads to, if it is a regular file of at most `largest` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise OSError(f"{path} has {size} bytes, at most {largest} are read")
        return file.read(largest)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file, or what a link leads to, if it is a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(f"{shown(str(path))} is no name of a file: {error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return open(descriptor, "rb")
