"""Sources in idx files, the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import io
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit_rpe.files import LARGEST, read_regular

from .sources import Arrays

_IDX = re.compile(r"(.+)-images-idx3-ubyte(\.gz)?$")


def idx_folder(folder: str | Path) -> dict[str, Arrays]:
    """Open the idx files of a folder, packed (.gz) or not, split by split."""
    names = {"train": "train", "t10k": "test"}
    splits: dict[str, Arrays] = {}
    for path in sorted(Path(folder).glob("*-images-idx3-ubyte*"), reverse=True):
        if match := _IDX.fullmatch(path.name):
            labels = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
            arrays = read_idx(path), read_idx(labels)
            if len(arrays[0]) != len(arrays[1]):
                raise ValueError(f"{path} has {len(arrays[0])} images and {len(arrays[1])} labels")
            classes = [str(label) for label in range(int(arrays[1].max()) + 1)]
            splits.setdefault(names.get(match[1], match[1]), Arrays(*arrays, classes))
    if not splits:
        raise ValueError(f"{str(folder)!r} has no files such as train-images-idx3-ubyte.gz")
    return splits


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the idx format: a magic number, the sides, the values."""
    packed = io.BytesIO(read_regular(path))
    try:
        with gzip.open(packed) if path.suffix == ".gz" else packed as file:
            return _idx_array(file, path)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _idx_array(file: Any, path: Path) -> NDArray[np.uint8]:
    """Read no more than the header says: a few packed bytes can unpack to any number."""
    head = file.read(4)
    sizes = file.read(4 * head[3]) if len(head) == 4 else b""
    if head[:3] != b"\0\0\x08" or len(sizes) < 4 * head[3]:
        raise ValueError(f"{path} is not an idx file of bytes: it starts with {head!r}")
    sides = struct.unpack(f">{head[3]}I", sizes)
    size = math.prod(sides)
    if size > LARGEST:
        raise ValueError(f"{path} claims an array of {size} bytes, at most {LARGEST} are read")
    data = file.read(size + 1)
    if len(data) != size:
        found = f"more than {size}" if len(data) > size else len(data)
        raise ValueError(f"{path} should hold an array {sides}, but has {found} bytes")
    return np.frombuffer(data, np.uint8).reshape(sides)
