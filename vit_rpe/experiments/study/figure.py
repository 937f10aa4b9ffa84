"""The picture of a study: values and paired differences, with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_rpe.extras import import_extra
from vit_rpe.files import atomic_write
from vit_rpe.report import MARK

from .file import Study
from .statistics import Estimate
from .tables import Difference, Value, labels_of, named

INK = "#333333"


def draw(
    study: Study, values: Sequence[Value], differences: Sequence[Difference], path: Path
) -> None:
    """Draw all settings, and beside them all differences."""
    figures = import_extra("matplotlib.figure", "report", "the picture of a study")
    panels = 2 if differences else 1
    height = 1.2 + 0.3 * max(len(values), len(differences))
    figure = figures.Figure(figsize=(6 * panels, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    levels = [dict(each.levels) for each in values]
    rows = [(labels_of(each.levels, levels) or study.name, each.value) for each in values]
    _panel(axes[0], rows, f"{study.metric}, {study.name}")
    if differences:
        _panel(axes[1], [(_label(each), each.value) for each in differences], "paired difference")
        axes[1].axvline(0, color=INK, linewidth=0.8)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=150, format="png")


def _label(each: Difference) -> str:
    group = named(each.row.group)
    return f"{each.row.comparison.name}{': ' if group else ''}{group}"


def _panel(axes: Any, rows: Sequence[tuple[str, Estimate]], title: str) -> None:
    """Draw a row for each estimate: its mean with the interval, and its single values."""
    for y, (_, value) in enumerate(rows):
        axes.scatter(value.values, [y] * value.count, s=9, color=INK, alpha=0.5, zorder=2)
        margin = [] if value.margin is None else value.margin
        axes.errorbar(value.mean, y, xerr=margin or None, fmt="D", color=MARK, capsize=3, zorder=3)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
