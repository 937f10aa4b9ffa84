"""Files of exhibits: tensors and a few plain values, in safetensors, whole or not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vit_rpe.files import atomic_write

FOLDER = "exhibits"  # of a run
_NAME = re.compile(r"(masks|batch|answers)-(\d+)\.safetensors")


@dataclass(frozen=True)
class Exhibit:
    """Tensors by name, and plain values, of one moment of a run; `epoch` are the finished ones."""

    kind: str
    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def write_exhibit(run: Path, exhibit: Exhibit) -> None:
    """Write an exhibit into the folder of a run, in place of the one of its kind and epoch."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in exhibit.tensors.items()}
    raw = save(tensors, {"values": json.dumps(exhibit.values)})
    with atomic_write(_path(run, exhibit.kind, exhibit.epoch)) as file:
        file.write(raw)


def read_exhibits(run: Path, kind: str) -> tuple[list[Exhibit], list[str]]:
    """Return the exhibits of a kind by epoch, and what is wrong with those that cannot be read."""
    found, wrong = [], []
    for epoch, file in sorted(_files(run, kind)):
        try:
            with safe_open(file, framework="pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}
                values = json.loads((opened.metadata() or {}).get("values", "{}"))
            found.append(Exhibit(kind, epoch, tensors, dict(values)))
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            wrong.append(f"{file.name} cannot be read: {error}")
    return found, wrong


def remove_exhibits(run: Path, kind: str, keep: set[int] | range) -> None:
    """Remove the exhibits of a kind whose epoch is not to be kept."""
    for epoch, file in _files(run, kind):
        if epoch not in keep:
            file.unlink(missing_ok=True)


def _files(run: Path, kind: str) -> Iterator[tuple[int, Path]]:
    for file in (run / FOLDER).glob(f"{kind}-*.safetensors"):
        if (match := _NAME.fullmatch(file.name)) and file.is_file():
            yield int(match[2]), file


def _path(run: Path, kind: str, epoch: int) -> Path:
    return run / FOLDER / f"{kind}-{epoch:04d}.safetensors"
