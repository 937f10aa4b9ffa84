"""Cells of a table: what is still to be run, one after the other, a line of JSON for each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vit_rpe.files import atomic_write
from vit_rpe.messages import shown

Levels = dict[str, str | int]
Record = dict[str, Any]


_FIELDS = {
    "levels": dict,
    "settings": dict,
    "result": dict,
    "cpu_seconds": float | int,
    "finished": str,
    "machine": str,
    "versions": dict,
}  # of a line


@dataclass(frozen=True)
class Cell:
    """One run: where it stands in its table, its settings, and the function that makes its result.

    Cells of a lower `rank` run first. `settings` are written down with the result; a line of other
    settings is refused.
    """

    table: str
    levels: Levels
    settings: dict[str, Any]
    run: Callable[[], dict[str, Any]] = field(compare=False)
    rank: int = 0

    @property
    def name(self) -> str:
        return " ".join([self.table, *(f"{k}={v}" for k, v in self.levels.items())])


class Results:
    """The finished cells of a table: a file with one line of JSON for each."""

    def __init__(self, path: Path):
        self.path = path
        self.records = self._read()

    def _read(self) -> list[Record]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [self._parse(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def _parse(self, line: str, number: int) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"{self.path}:{number}: not a line of JSON: {shown(line)}") from None
        for name, kind in _FIELDS.items():
            if not isinstance(record, dict) or not isinstance(record.get(name), kind):
                raise ValueError(f"{self.path}:{number}: not a finished cell: no {name}")
        return record

    def find(self, cell: Cell) -> Record | None:
        """Return the line of a cell; ValueError if it was run with other settings."""
        found = next((each for each in self.records if each["levels"] == cell.levels), None)
        wanted = json.loads(json.dumps(cell.settings))
        if found is not None and found["settings"] != wanted:
            raise ValueError(
                f"{self.path}: {cell.name} was run with {shown(found['settings'])}, now it is "
                f"{shown(wanted)}: remove the line, or take another --output"
            )
        return found

    def add(self, record: Record) -> None:
        """Write one more line; the file is whole at every moment."""
        self.records.append(record)
        lines = [json.dumps(each, ensure_ascii=False) for each in self.records]
        with atomic_write(self.path) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())


def results_of(folder: Path, table: str) -> Results:
    """Return the results of a table in a folder."""
    return Results(folder / f"graphs_{table}.jsonl")


def run_cells(
    plan: Callable[[], Sequence[Cell]], folder: Path, told: Callable[[str], None], about: Record
) -> None:
    """Run all cells of a plan that have no line yet, those of low rank first.

    The plan is made again after each cell: settings may follow from results. `about` says on which
    machine the cells run, and with which code.
    """
    while waiting := _left(plan(), folder):
        cell = min(waiting, key=lambda cell: cell.rank)
        start, cpu = time.perf_counter(), time.process_time()
        result = cell.run()
        seconds = time.perf_counter() - start
        record = {
            "table": cell.table,
            "levels": cell.levels,
            "settings": cell.settings,
            "result": result,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        }
        results_of(folder, cell.table).add({**record, **about})
        figures = ", ".join(f"{k} {v:.4g}" for k, v in result.items() if isinstance(v, int | float))
        told(f"{cell.name}: {figures}; {seconds:.0f} s; {len(waiting) - 1} left")


def _left(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    found = {table: results_of(folder, table) for table in {cell.table for cell in cells}}
    return [cell for cell in cells if found[cell.table].find(cell) is None]
