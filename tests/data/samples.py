"""Small images and shards for the tests: uneven sides, uneven lengths, no symmetry."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import webdataset as wds
from PIL import Image

from vit_rpe.data import BadSamples, ImageTransform, Loader, Plan, SampleReader, Shards, open_shards


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


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def bad_of(shards: Shards, workers: int = 0, **options) -> list[tuple[str, str]]:
    """(key, reason) of the bad samples of an epoch, whose good samples must all come."""
    plan = Plan(shards.lengths, 3, drop_last=False)
    bad = BadSamples(shards.num_samples, limit=1)
    loader = Loader(shards, plan, ImageTransform(8), workers=workers, bad=bad, **options)
    good = sum(int(batch.valid.sum()) for batch in loader.epoch(0))
    assert good + len(bad) == shards.num_samples
    return sorted((key, found.reason) for (_, key), found in bad.found.items())


def thin(length: int = 20_000) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (1, length)).save(stream, format="PNG")
    return stream.getvalue()


def read_back(folder: Path, split: str) -> list[tuple[int, bytes]]:
    shards = open_shards(str(folder), split)
    return [(s.label, s.data) for s in SampleReader(shards).read(np.arange(shards.num_samples))]


COUNTS = {"train": {"cat": 5, "dog": 9, "yak": 3}, "val": {"cat": 2, "yak": 4}}


def write_folder(root: Path) -> dict[str, list[tuple[int, bytes]]]:
    """ImageNet's layout, with names that tar and webdataset would stumble over."""
    wanted: dict[str, list[tuple[int, bytes]]] = {}
    i = 0
    for split, classes in COUNTS.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True)
            for n in range(count):
                i += 1
                ending, kind = [(".JPEG", "JPEG"), (".png", "PNG"), (".jpg", "JPEG")][i % 3]
                data = encoded(i, kind, height=8 + i, width=30 - i)
                (root / split / name / f"ein Bild.{n} ü{'x' * 80}{ending}").write_bytes(data)
                wanted.setdefault(split, []).append((sorted(COUNTS["train"]).index(name), data))
    return wanted


def write_images(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i:03d}.png").write_bytes(encoded(i % 5))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


INFO = {"name": "train", "num_samples": 5, "filenames": ["a-000.tar"], "shard_lengths": [5]}


def labels_of(shards) -> list[int]:
    samples = SampleReader(shards).read(np.arange(shards.num_samples))
    return [each.label for each in samples]  # pyright: ignore
