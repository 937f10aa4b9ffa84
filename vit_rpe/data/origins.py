"""The sources in a folder, a CSV file, idx files, torchvision or scikit-learn, split by split."""

from __future__ import annotations

import csv
import gzip
import inspect
import os
import re
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchvision import datasets
from torchvision.datasets.folder import find_classes, make_dataset

from .layout import IMAGE_ENDINGS
from .sources import Arrays, Dataset, Files, Source

SPLITS = ("train", "val", "validation", "test")
_IDX = re.compile(r"(.+)-images-idx3-ubyte(\.gz)?$")


def image_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """class/image.jpg, or the same below train/, val/, ...: ImageNet's layout as it is.

    Classes are the folders of the training split in the order of their names, as in torchvision.
    """
    parts = find_splits(folder, split)
    classes, numbers = class_folders(next(iter(parts.values())))
    return {name: _files_of(part, classes, numbers) for name, part in parts.items()}


def find_splits(folder: str | Path, split: str) -> dict[str, Path]:
    """The folders train/, val/, ... in a folder, or the folder itself as one split."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"no folder {str(root)!r}")
    found = [name for name in SPLITS if (root / name).is_dir()]
    return {name: root / name for name in found} or {split: root}


def class_folders(folder: Path) -> tuple[list[str], dict[str, int]]:
    try:
        return find_classes(str(folder))
    except FileNotFoundError:
        raise ValueError(f"{str(folder)!r} has no folders, one for each class, in it") from None


def check_classes(folder: Path, classes: Sequence[str]) -> None:
    unknown = sorted(set(class_folders(folder)[0]) - set(classes))
    if unknown:
        raise ValueError(f"{str(folder)!r} has the class {unknown[0]!r}, which train has not")


def _files_of(folder: Path, classes: list[str], numbers: dict[str, int]) -> Files:
    check_classes(folder, classes)
    endings = tuple(f".{ending}" for ending in IMAGE_ENDINGS)
    files = make_dataset(str(folder), numbers, extensions=endings, allow_empty=True)
    names = [os.path.relpath(path, folder) for path, _ in files]
    return Files(folder, names, [label for _, label in files], classes)


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    endings: Sequence[str] = IMAGE_ENDINGS,
) -> dict[str, Source]:
    """Columns path, label and, if wanted, split; paths are relative to `root`, or to the file.

    Labels are numbers, or names, which are then numbered in the order of the alphabet.
    """
    base = Path(root) if root is not None else Path(path).parent
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        missing = {"path", "label"} - set(table.fieldnames or ())
        if missing:
            raise ValueError(f"{path} needs the columns path and label, got {table.fieldnames}")
        rows = list(table)
    for line, row in enumerate(rows, 2):
        _check_row(row, f"{path}, line {line}", base, endings)
    numeric = all(row["label"].strip().isdigit() for row in rows)
    classes = [] if numeric else sorted({row["label"] for row in rows})
    number = int if numeric else classes.index
    splits: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        splits.setdefault(row.get("split") or "train", []).append(row)
    return {
        name: Files(base, [r["path"] for r in part], [number(r["label"]) for r in part], classes)
        for name, part in splits.items()
    }


def _check_row(row: dict[str, str], where: str, base: Path, endings: Sequence[str]) -> None:
    if not row["path"] or not row["label"]:
        raise ValueError(
            f"{where}: path and label must be given, got {row['path']!r}, {row['label']!r}"
        )
    if Path(row["path"]).is_absolute() or ".." in Path(row["path"]).parts:
        raise ValueError(f"{where}: a path within the folder of the files, got {row['path']!r}")
    is_folder = "" in endings and (base / row["path"]).is_dir()
    if Path(row["path"]).suffix.lower().lstrip(".") not in endings and not is_folder:
        wanted = ", ".join(ending or "nothing (a folder of frames)" for ending in endings)
        raise ValueError(f"{where}: a file ending in {wanted}, got {row['path']!r}")


def idx_folder(folder: str | Path) -> dict[str, Arrays]:
    """The idx files of MNIST and Fashion-MNIST, packed (.gz) or not."""
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
    """An array of bytes in the idx format: a magic number, the sides, the values."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of bytes: it starts with {data[:4]!r}")
    axes = data[3]
    sides = struct.unpack_from(f">{axes}I", data, 4)
    if len(data) != 4 + 4 * axes + int(np.prod(sides)):
        raise ValueError(f"{path} should hold an array {sides}, but has {len(data)} bytes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(sides)


def digits() -> dict[str, Arrays]:
    """scikit-learn's 1,797 real 8 x 8 digits; every fifth of each class is for validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("digits come with scikit-learn: pip install scikit-learn") from None
    bunch: Any = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # values are 0 to 16
    labels = bunch.target
    place = np.empty_like(labels)
    for label in range(10):
        place[labels == label] = np.arange((labels == label).sum())
    held_out = place % 5 == 4
    classes = [str(label) for label in range(10)]
    return {
        "train": Arrays(images[~held_out], labels[~held_out], classes),
        "val": Arrays(images[held_out], labels[held_out], classes),
    }


def torchvision_dataset(name: str, root: str | Path, download: bool = False) -> dict[str, Source]:
    """The splits of one of torchvision's datasets of images."""
    kind: Any = getattr(datasets, name, None)
    if not isinstance(kind, type):
        raise ValueError(f"torchvision.datasets has no {name!r}")
    names = inspect.signature(kind).parameters
    options: dict[str, Any] = {"download": download} if "download" in names else {}
    if "train" in names:
        choices = {"train": {"train": True}, "test": {"train": False}}
    elif "split" in names:
        choices = {split: {"split": split} for split in ("train", "test")}
    else:
        choices = {"train": {}}
    splits: dict[str, Source] = {}
    for split, choice in choices.items():
        dataset = partial(kind, str(root))(**options, **choice)
        classes = [str(label) for label in getattr(dataset, "classes", [])]
        splits[split] = Dataset(dataset, f"{name} {split}", classes)
    return splits
