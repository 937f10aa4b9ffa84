"""Files: written whole or not at all, read only if they are regular, hashed; the cache folder.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

LARGEST = 1 << 32  # bytes of a file that is read as a whole: 4 GiB


def cache_folder() -> Path:
    """Where the package keeps what it can make again.

    $VIT_RPE_CACHE, else $XDG_CACHE_HOME/vit_rpe, else ~/.cache/vit_rpe.
    """
    if own := os.environ.get("VIT_RPE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit_rpe"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when all of it is written and on disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with open(part, "xb") as file:  # never through a link that somebody else has put there
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 sum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: str | Path, largest: int = LARGEST) -> bytes:
    """Read a regular file, or the one that a link leads to, of at most `largest` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise OSError(f"{path} has {size} bytes, at most {largest} are read")
        return file.read(largest)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file that somebody else names: a FIFO blocks, /dev/zero never ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(f"{str(path)!r:.200} is no name of a file: {error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return open(descriptor, "rb")
