"""Running tables, and writing down what they say."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from vit_rpe.extras import import_extra
from vit_rpe.files import atomic_write
from vit_rpe.messages import nearest

from ..study.record import machine, revision, versions
from .cells import Cell, Record, results_of, run_cells
from .reports import citation as citation_report
from .reports import cycles as cycles_report
from .reports import motifs as motifs_report
from .reports import speed as speed_report
from .reports import tu as tu_report
from .reports import wallclock as wallclock_report
from .tables import citation, cycles, motifs, speed, tu, wallclock

TABLES: dict[str, tuple[ModuleType, ModuleType]] = {
    "citation": (citation, citation_report),
    "motifs": (motifs, motifs_report),
    "cycles": (cycles, cycles_report),
    "tu": (tu, tu_report),
    "speed": (speed, speed_report),
    "wallclock": (wallclock, wallclock_report),
}


class Stopped(BaseException):
    """A signal that asks to stop; what a cell has done so far is lost."""


def planned(
    names: Sequence[str], folder: Path, quick: bool, only: Mapping[str, Sequence[str]]
) -> list[Cell]:
    """Return the cells of some tables that can be run now, or are finished."""
    if only:
        _check_levels([cell for name in names for cell in every_cell(name, quick)], only)
    found = [c for n in names for c in TABLES[n][0].cells(results_of(folder, n).records, quick)]
    return [cell for cell in found if _is_wanted(cell, only)]


@cache
def every_cell(name: str, quick: bool = False) -> list[Cell]:
    """Return all cells that a table can have, as if each had been run as soon as it was there."""
    done: list[Record] = []
    known: set[str] = set()
    while True:
        cells = TABLES[name][0].cells(done, quick)
        new = [cell for cell in cells if cell.name not in known]
        if not new:
            return cells
        known |= {cell.name for cell in new}
        done += [{"levels": c.levels, "result": {"val": 0.0, "val_loss": 0.0}} for c in new]


def _check_levels(cells: Sequence[Cell], only: Mapping[str, Sequence[str]]) -> None:
    for level, values in only.items():
        known = {str(cell.levels[level]) for cell in cells if level in cell.levels}
        if not known:
            there = {level for cell in cells for level in cell.levels}
            close = nearest(level, there) or f"; there are {', '.join(sorted(there))}"
            raise ValueError(f"--only: no level {level!r}{close}")
        for value in values:
            if value not in known:
                close = nearest(value, known) or f"; there are {', '.join(sorted(known))}"
                raise ValueError(f"--only: no cell has {level}={value}{close}")
    if not any(_is_wanted(cell, only) for cell in cells):
        text = " ".join(f"{level}={','.join(values)}" for level, values in only.items())
        raise ValueError(f"--only: no cell has all of {text}")


def _is_wanted(cell: Cell, only: Mapping[str, Sequence[str]]) -> bool:
    return all(str(cell.levels.get(level)) in values for level, values in only.items())


def run_tables(
    names: Sequence[str],
    folder: Path,
    told: Callable[[str], None],
    quick: bool = False,
    only: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Run what is left of some tables; Stopped by SIGTERM, SIGUSR1 or SIGINT."""
    about = {
        "machine": machine(),
        "versions": versions() | {"torch_geometric": version("torch_geometric")},
        **revision(),
    }
    if not planned(names, folder, quick, only or {}):
        told(
            "none of these cells can be run yet: their settings follow from cells with part=choice"
        )
    with _stopping():
        run_cells(lambda: planned(names, folder, quick, only or {}), folder, told, about)


@contextmanager
def _stopping() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> NoReturn:
        raise Stopped

    asked = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {each: signal.signal(each, stop) for each in asked}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def section(name: str, folder: Path, quick: bool = False) -> str:
    """Return what the lines of a table say, in Markdown."""
    report = TABLES[name][1]
    results = results_of(folder, name)
    lines = [f"### {report.TITLE}", "", report.ABOUT, "", _cost(name, results.records, quick)]
    for table in report.tables(results.records):
        if table.lines:
            lines += ["", f"{table.title}:", "", table.markdown()]
    if results.records and hasattr(report, "verdicts"):
        lines += ["", "Aimed at:", "", *(f"- {each}" for each in report.verdicts(results.records))]
    return "\n".join(lines) + "\n"


def _cost(name: str, records: Sequence[Record], quick: bool) -> str:
    """Say by which command the lines were made, when, and how long it took."""
    command = f"vit-rpe graphs {name}"
    if not records:
        return f"No cell is finished yet: `{command}`."
    cells = TABLES[name][0].cells(records, quick)
    finished = sum(any(each["levels"] == cell.levels for each in records) for cell in cells)
    hours = sum(each["cpu_seconds"] for each in records) / 3600
    days = sorted(each["finished"][:10] for each in records)
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    used = sorted({_versions(each) for each in records})
    return (
        f"`{command}`: {finished} of {len(cells)} cells; {hours:.1f} hours of one thread, {span}, "
        f"{records[-1]['machine']}; {'; '.join(used)}."
    )


def _versions(record: Record) -> str:
    found = record["versions"]
    return f"torch {found['torch']}, torch-geometric {found['torch_geometric']}"


def insert_sections(names: Sequence[str], folder: Path, page: Path) -> None:
    """Renew the sections of some tables on a page, between their marks."""
    text = page.read_text(encoding="utf-8")
    for name in names:
        begin, end = f"<!-- graphs: {name} -->", f"<!-- end of graphs: {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{page}: wanted the lines {begin} and {end}, once")
        new = f"{begin}\n{section(name, folder)}{end}"
        text = pattern.sub(lambda _, new=new: new, text)
    with atomic_write(page) as file:
        file.write(text.encode())


def draw_tables(names: Sequence[str], folder: Path, target: Path) -> list[Path]:
    """Draw a picture of each table that has one and lines to draw."""
    figures = import_extra("matplotlib.figure", "report", "pictures of tables")
    drawn: list[Path] = []
    for name in names:
        report, records = TABLES[name][1], results_of(folder, name).records
        if not hasattr(report, "draw") or not records:
            continue
        figure: Any = figures.Figure(figsize=(9, 4.2), layout="constrained")
        report.draw(figure.subplots(), records)
        drawn.append(target / f"graphs_{name}.png")
        with atomic_write(drawn[-1]) as file:
            figure.savefig(file, dpi=110, format="png")
    return drawn
