"""A validation split where there is none: a fraction of each class, chosen by file names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..hashing import unit_interval
from .sources import Files, Source

NAME = "val"


def hold_out(splits: Mapping[str, Source], fraction: float) -> dict[str, Files]:
    """Cut a split in two. A file is held out if the hash of its name is below the fraction.

    So it stays in its part, whatever files come or go, and each class is cut about alike. Of a
    class of two files or more each part has at least one.
    """
    if len(splits) != 1:
        raise ValueError(f"there are the splits {', '.join(splits)} already: nothing is held out")
    ((name, files),) = splits.items()
    if name == NAME:
        raise ValueError(f"the split is called {NAME} already: nothing is held out")
    assert isinstance(files, Files)
    held = _held_out(files, fraction)
    rest = sorted(set(range(len(files))) - set(held))
    return {name: _part(files, rest), NAME: replace(_part(files, held), passed_over={})}


def _held_out(files: Files, fraction: float) -> list[int]:
    members: dict[int, list[tuple[float, int]]] = {}
    for number, (name, label) in enumerate(zip(files.names, files.labels, strict=True)):
        members.setdefault(label, []).append((_hash(name), number))
    held: list[int] = []
    for group in map(sorted, members.values()):
        count = sum(value < fraction for value, _ in group)
        if len(group) > 1:
            count = min(max(count, 1), len(group) - 1)
        held += [number for _, number in group[:count]]
    return sorted(held)


def _hash(name: str) -> float:
    """Hash a name to a number from 0 to 1, evenly."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return unit_interval(digest)


def _part(files: Files, numbers: Sequence[int]) -> Files:
    names, labels = ([values[i] for i in numbers] for values in (files.names, files.labels))
    return replace(files, names=names, labels=labels)
