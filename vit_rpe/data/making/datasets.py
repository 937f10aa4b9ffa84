"""Sources in scikit-learn and torchvision."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets

from vit_rpe.extras import import_extra

from .sources import Arrays, Dataset, Source


def digits() -> dict[str, Arrays]:
    """Load scikit-learn's 1,797 real 8 x 8 digits; every fifth of each class is for validation."""
    bunch = import_extra("sklearn.datasets", "train", "the set of digits").load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # values are 0 to 16
    labels = bunch.target
    order = np.empty_like(labels)  # within the class
    for label in range(10):
        order[labels == label] = np.arange((labels == label).sum())
    held_out = order % 5 == 4
    classes = [str(label) for label in range(10)]
    return {
        "train": Arrays(images[~held_out], labels[~held_out], classes),
        "val": Arrays(images[held_out], labels[held_out], classes),
    }


def torchvision_dataset(name: str, root: str | Path, download: bool = False) -> dict[str, Source]:
    """Open the splits of one of torchvision's datasets of images, by its name."""
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
