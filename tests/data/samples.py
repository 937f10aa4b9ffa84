"""Small images and shards for the tests: uneven sides, uneven lengths, no symmetry."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import webdataset as wds
from PIL import Image

from vit_rpe.data import Shards, open_shards


def pixels(i: int, height: int = 9, width: int = 14) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(i: int, kind: str = "PNG", **sides: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(i, **sides)).save(stream, format=kind)
    return stream.getvalue()


def sample(i: int, label: int | None = None) -> dict[str, bytes | str]:
    label = i % 10 if label is None else label
    return {"__key__": f"k{i:04d}", "png": encoded(i), "cls": str(label).encode()}


def write_shard(path: Path, samples: Iterable[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path), encoder=False) as tar:  # pyright: ignore
        for each in samples:
            tar.write(each)
    return path


def make_set(folder: Path, lengths: Iterable[int]) -> Shards:
    """Shards of these lengths; sample i has the pixels(i) and the label i % 10."""
    first = 0
    for number, length in enumerate(lengths):
        numbers = range(first, first + length)
        write_shard(folder / f"x-train-{number:03d}.tar", map(sample, numbers))
        first += length
    return open_shards(str(folder))
