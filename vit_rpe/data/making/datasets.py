"""The sources in a folder, a CSV file, idx files, torchvision or scikit-learn, split by split."""

from __future__ import annotations

import csv
import gzip
import inspect
import io
import math
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchvision import datasets
from torchvision.datasets.folder import find_classes, make_dataset

from vit_rpe.files import LARGEST, read_regular
from vit_rpe.messages import shown

from ..shards.layout import IMAGE_ENDINGS, LARGEST_LABEL
from .sources import Arrays, Dataset, Files, Source

SPLITS = ("train", "val", "validation", "test")
_IDX = re.compile(r"(.+)-images-idx3-ubyte(\.gz)?$")


def image_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """class/image.jpg, or the same below train/, val/, ...: ImageNet's layout as it is.

    Classes are the folders of the training split in the order of their names, as in torchvision.
    """
    parts = find_splits(folder, split)
    classes, numbers = class_folders(next(iter(parts.values())))
    return {name: _images_of(part, classes, numbers) for name, part in parts.items()}


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


def _images_of(folder: Path, classes: list[str], numbers: dict[str, int]) -> Files:
    check_classes(folder, classes)
    endings = tuple(f".{ending}" for ending in IMAGE_ENDINGS)
    others: list[str] = []

    def is_image(path: str) -> bool:
        found = path.lower().endswith(endings)
        if not found:
            others.append(path)
        return found

    found = make_dataset(str(folder), numbers, is_valid_file=is_image, allow_empty=True)
    paths = [(Path(path), label) for path, label in found]
    return files_of(
        folder, paths, classes, map(Path, others), f"images ({', '.join(IMAGE_ENDINGS)})"
    )


def files_of(
    folder: Path,
    found: Sequence[tuple[Path, int]],
    classes: Sequence[str],
    others: Iterable[Path],
    what: str,
) -> Files:
    """The files of a split, and a count of the `others` in it; no class may be without any."""
    passed = {label: Counter[str]() for label in classes}
    for path in others:
        passed[path.relative_to(folder).parts[0]][path.suffix.lower() or "no ending"] += 1
    for empty in sorted(set(class_folders(folder)[0]) - {classes[label] for _, label in found}):
        raise ValueError(f"{str(folder / empty)!r} has no {what} in it{_but(passed[empty])}")
    beside = (Path(each.name) for each in os.scandir(folder) if each.is_file())
    total = sum(passed.values(), Counter(path.suffix.lower() or "no ending" for path in beside))
    names = [str(path.relative_to(folder)) for path, _ in found]
    return Files(folder, names, [label for _, label in found], classes, total)


def listed(counts: Mapping[str, int]) -> str:
    """Endings and how many files have them, in words."""
    return ", ".join(f"{count} x {shown(kind)[1:-1]}" for kind, count in sorted(counts.items()))


def _but(counts: Mapping[str, int]) -> str:
    return f", but {listed(counts)}" if counts else ""


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    endings: Sequence[str] = IMAGE_ENDINGS,
) -> dict[str, Source]:
    """Columns path, label and, if wanted, split; paths are relative to `root`, or to the file.

    Labels are numbers, or names, which are then numbered in the order of the alphabet.
    """
    base = Path(root) if root is not None else Path(path).parent
    rows = _rows_of(path)
    for line, row in enumerate(rows, 2):
        _check_row(row, f"{path}, line {line}", base, endings)
    numeric = _are_numbers([row["label"] for row in rows], path)
    classes = [] if numeric else sorted({row["label"] for row in rows})
    numbers = {name: number for number, name in enumerate(classes)}
    number = int if numeric else numbers.__getitem__
    splits: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        splits.setdefault(row.get("split") or "train", []).append(row)
    return {
        name: Files(base, [r["path"] for r in part], [number(r["label"]) for r in part], classes)
        for name, part in splits.items()
    }


def _rows_of(path: str | Path) -> list[dict[str, str]]:
    try:
        text = read_regular(path).decode("utf-8-sig")  # with a byte order mark or without
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from None
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = table.fieldnames
        if not {"path", "label"} <= set(columns or ()):
            got = shown(columns) if columns else "none"
            raise ValueError(f"{path} needs the columns path and label, got {got}")
        rows = list(table)
    except csv.Error as error:
        raise ValueError(f"{path}, after line {table.line_num}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def _are_numbers(labels: Sequence[str], path: str | Path) -> bool:
    """Whether labels are numbers. A slip in one of them must not make names of all the others."""
    numeric = [re.fullmatch(r"\s*[0-9]+\s*", label) is not None for label in labels]
    for line, (label, is_number) in enumerate(zip(labels, numeric, strict=True), 2):
        if is_number != numeric[0]:
            kinds = ("a name", "a number")[:: -1 if is_number else 1]
            raise ValueError(
                f"{path}, line {line}: label {shown(label)} is {kinds[0]}, and {shown(labels[0])} "
                f"in line 2 {kinds[1]}: all must be one or the other"
            )
        if is_number and len(label.strip().lstrip("0")) > len(str(LARGEST_LABEL)):
            raise ValueError(
                f"{path}, line {line}: a label below {LARGEST_LABEL + 1}, got {shown(label)}"
            )
    return numeric[0]


def _check_row(row: dict[str, str], where: str, base: Path, endings: Sequence[str]) -> None:
    if not row["path"] or not row["label"]:
        raise ValueError(
            f"{where}: path and label must be given, got {shown(row['path'])}, "
            f"{shown(row['label'])}"
        )
    path = Path(row["path"])
    if path.is_absolute() or ".." in path.parts or "\0" in row["path"]:
        raise ValueError(
            f"{where}: a path within the folder of the files, got {shown(row['path'])}"
        )
    is_folder = "" in endings and (base / row["path"]).is_dir()
    if Path(row["path"]).suffix.lower().lstrip(".") not in endings and not is_folder:
        wanted = ", ".join(ending or "nothing (a folder of frames)" for ending in endings)
        raise ValueError(f"{where}: a file ending in {wanted}, got {shown(row['path'])}")


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
