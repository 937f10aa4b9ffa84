"""Means over seeds of what the lines of a table say, and how a table shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...study.statistics import Estimate, estimate
from ...study.tables import NONE, Line, Table
from ..cells import Record

__all__ = [
    "NONE",
    "Line",
    "Table",
    "chosen",
    "levels_of",
    "first_of",
    "mean_of",
    "quoted",
    "said",
    "verdict",
]


def chosen(records: Iterable[Record], **levels: Any) -> list[Record]:
    """Return the lines that have these levels."""
    return [r for r in records if all(r["levels"].get(k) == v for k, v in levels.items())]


def levels_of(records: Iterable[Record], name: str) -> list[Any]:
    """Return the values of a level that are there, in the order of the lines."""
    return list(dict.fromkeys(r["levels"][name] for r in records if name in r["levels"]))


def mean_of(
    records: Sequence[Record], what: str = "test", over: str | None = None
) -> Estimate | None:
    """Estimate a result in percent from all lines, or from their means in groups of one level."""
    if not records:
        return None
    if over is None:
        return estimate([100 * r["result"][what] for r in records])
    groups: dict[Any, list[float]] = {}
    for record in records:
        groups.setdefault(record["levels"][over], []).append(100 * record["result"][what])
    return estimate([sum(values) / len(values) for values in groups.values()])


def verdict(aim: str, measured: str, met: bool | None) -> str:
    """Hold a figure against what was aimed at; None: the runs for it are not all there."""
    word = "not finished" if met is None else "met" if met else "**missed**"
    return f"{aim}: {measured}, {word}"


def first_of(values: Mapping[str, Estimate | None], wanted: int) -> bool | None:
    """Say whether GKAT has the highest mean; None unless all have so many runs."""
    counts = [0 if value is None else value.count for value in values.values()]
    if min(counts) < wanted:
        return None
    means = {name: value.mean for name, value in values.items() if value is not None}
    return max(means, key=lambda name: means[name]) == "GKAT"


def said(value: Estimate | None, wanted: int | None = None) -> str:
    """Show mean and deviation, and how many runs there are if some are missing."""
    if value is None:
        return NONE
    spread = "" if value.deviation is None else f" ± {value.deviation:.1f}"
    missing = f" ({value.count} of {wanted})" if wanted and value.count < wanted else ""
    return f"{value.mean:.1f}{spread}{missing}"


def quoted(figure: tuple[float, float] | float | None) -> str:
    """Show a figure of the paper."""
    if figure is None:
        return NONE
    return f"{figure[0]:.1f} ± {figure[1]:.1f}" if isinstance(figure, tuple) else f"{figure:.1f}"
