"""The tables of a study: values of each setting, paired differences, other image sizes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .comparisons import Levels, Row, rows_of
from .file import Study
from .results import Record, Results
from .statistics import Estimate, estimate
from .trials import Trial

Line = dict[str, str]
NONE = "-"


@dataclass(frozen=True)
class Table:
    title: str
    lines: list[Line]

    def markdown(self) -> str:
        columns = list(self.lines[0])
        rows = [columns, ["---"] * len(columns), *([*line.values()] for line in self.lines)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.lines)
        return text.getvalue()


@dataclass(frozen=True)
class Value:
    """The metric of a setting over the seeds that are there, of those that were planned."""

    levels: Levels
    value: Estimate
    planned: int
    records: list[Record]


@dataclass(frozen=True)
class Difference:
    row: Row
    value: Estimate


def values_of(study: Study, trials: Sequence[Trial], results: Results) -> list[Value]:
    """Return the settings of which at least one seed is there."""
    values = results.values(trials)
    groups: dict[Levels, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.levels, []).append(trial)
    found: list[Value] = []
    for levels, group in groups.items():
        there = [trial for trial in group if (trial.levels, trial.seed) in values]
        if there:
            value = estimate([values[trial.levels, trial.seed] for trial in there])
            records = [each for each in map(results.find, there) if each is not None]
            found.append(Value(levels, value, len(group), records))
    return found


def differences_of(study: Study, trials: Sequence[Trial], results: Results) -> list[Difference]:
    """Return the differences of which at least one seed is there."""
    values = results.values(trials)
    pairs = ((row, row.difference(values)) for row in rows_of(study, trials))
    return [Difference(row, value) for row, value in pairs if value is not None]


def value_table(study: Study, values: Sequence[Value]) -> Table:
    factors = [f for f in study.factors if len({dict(v.levels)[f] for v in values}) > 1]
    lines: list[Line] = []
    for each in values:
        line = {factor: dict(each.levels)[factor] for factor in factors}
        line |= {"seeds": _count(each.value, each.planned), study.metric: f"{each.value.mean:.2f}"}
        line |= _spread(each.value)
        line["parameters"] = f"{each.records[0]['parameters']:,}"
        line["CPU minutes"] = f"{fmean(r['cpu_seconds'] for r in each.records) / 60:.1f}"
        lines.append(line)
    return Table("Values", lines)


def difference_table(study: Study, found: Sequence[Difference]) -> Table:
    factors = [f for f in study.factors if any(f in dict(each.row.group) for each in found)]
    lines: list[Line] = []
    for each in found:
        line = {"comparison": each.row.comparison.name}
        line |= {factor: _levels(each.row, factor) for factor in factors}
        line["seeds"] = _count(each.value, len(each.row.seeds))
        line["difference"] = f"{each.value.mean:+.2f}"
        line |= _spread(each.value, signed=True)
        line["of each seed"] = ", ".join(f"{value:+.2f}" for value in each.value.values)
        lines.append(line)
    return Table("Paired differences", lines)


def size_table(study: Study, values: Sequence[Value]) -> Table:
    """Top-1 of the last weights at other image sizes, with the deviation over the seeds."""
    factors = [f for f in study.factors if len({dict(v.levels)[f] for v in values}) > 1]
    lines: list[Line] = []
    for each in values:
        line = {factor: dict(each.levels)[factor] for factor in factors}
        for size in map(str, study.sizes):
            found = [r["sizes"][size] for r in each.records if size in r.get("sizes", {})]
            line[f"{size} px"] = _brief(found) if found else NONE
        lines.append(line)
    return Table("Other image sizes", lines)


def tables_of(study: Study, trials: Sequence[Trial], results: Results) -> dict[str, Table]:
    """Return all tables that the results allow, by the name of their file."""
    values = values_of(study, trials, results)
    found: dict[str, Table] = {}
    if values:
        found["values"] = value_table(study, values)
    if differences := differences_of(study, trials, results):
        found["differences"] = difference_table(study, differences)
    if values and study.sizes:
        found["sizes"] = size_table(study, values)
    return found


def labels_of(levels: Levels, values: Sequence[Mapping[str, Any]]) -> str:
    """Name a setting by the factors in which the settings differ."""
    return named(pair for pair in levels if len({each[pair[0]] for each in values}) > 1)


def named(levels: Iterable[tuple[str, str]]) -> str:
    """Write levels with the names of their factors."""
    return ", ".join(f"{factor} {level}" for factor, level in levels)


def _levels(row: Row, factor: str) -> str:
    sides = zip(*row.pairs, strict=True)
    this, minus = (list(dict.fromkeys(dict(each)[factor] for each in side)) for side in sides)
    if this != minus:
        return f"{', '.join(this)} vs {', '.join(minus)}"
    return this[0] if len(this) == 1 else "average"


def _count(value: Estimate, planned: int) -> str:
    return str(planned) if value.count == planned else f"{value.count} of {planned}"


def _spread(value: Estimate, signed: bool = False) -> Line:
    sign = "+" if signed else ""
    interval = value.interval
    shown = NONE if interval is None else " to ".join(f"{end:{sign}.2f}" for end in interval)
    deviation = NONE if value.deviation is None else f"{value.deviation:.2f}"
    return {"deviation": deviation, "95 % interval": shown}


def _brief(values: Sequence[float]) -> str:
    each = estimate(values)
    return f"{each.mean:.2f}" + ("" if each.deviation is None else f" ± {each.deviation:.2f}")
