"""A run as it lies in its folder: what it wrote, read without trusting it."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit_rpe.files import read_regular
from vit_rpe.messages import counted, short
from vit_rpe.training import CheckpointError, Recipe, RecipeError, load_recipe, read_log

LARGEST = 1 << 28  # bytes of a table that is read
MOST_BAD = 200  # bad samples that are named
LONGEST = 2000  # characters of a text


@dataclass(frozen=True)
class RunRecord:
    """The recipe of a run, the lines of its log, a row for each epoch, and its bad samples."""

    folder: Path
    recipe: Recipe
    log: list[dict[str, Any]]
    history: list[dict[str, float | None]]
    bad: list[list[str]] = field(default_factory=list)  # split, shard, key, reason
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log about an event: start, train, epoch, skipped."""
        return [line for line in self.log if line.get("event") == event]

    @property
    def steps_per_epoch(self) -> float | None:
        """The steps of an epoch, if one was finished."""
        last = (self.lines("epoch") or [{}])[-1]
        step, epoch = last.get("step"), last.get("epoch")
        return step / epoch if isinstance(step, int) and isinstance(epoch, int) and epoch else None


def read_run(path: str | Path) -> RunRecord:
    """Read a run's folder; CheckpointError if it is not one."""
    folder = Path(path).expanduser()
    if not (folder / "recipe.yaml").is_file():
        raise CheckpointError(f"{path} is not a run: it has no recipe.yaml")
    try:
        recipe = load_recipe(folder / "recipe.yaml")
    except RecipeError as error:
        raise CheckpointError(f"{path} is a run of another version: {error}") from None
    notes: list[str] = []
    log = _log(folder, notes)
    bad = [
        [short(cell, LONGEST) for cell in (split, *row)]
        for split in ("train", "val")
        for row in _rows(folder / f"bad_samples-{split}.csv", notes)[1:]
    ]
    return RunRecord(folder.resolve(), recipe, log, _history(folder, notes), bad, notes)


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None


def _log(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        lines, damaged = read_log(folder)
    except OSError as error:
        notes.append(str(error))
        return []
    if damaged:
        notes.append(f"log.jsonl: {counted(damaged, 'line')} cannot be read")
    return lines


def _history(folder: Path, notes: list[str]) -> list[dict[str, float | None]]:
    rows = _rows(folder / "summary.csv", notes)
    if not rows:
        return []
    head, *rows = rows
    return [dict(zip(head, map(_number, row), strict=False)) for row in rows]


def _number(text: str) -> float | None:
    try:
        return number(float(text))
    except ValueError:
        return None


def _rows(path: Path, notes: list[str]) -> list[list[str]]:
    try:
        return list(csv.reader(_text(path, notes).splitlines()))
    except csv.Error as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return []


def _text(path: Path, notes: list[str]) -> str:
    try:
        return read_regular(path, LARGEST).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(str(error))
        return ""
