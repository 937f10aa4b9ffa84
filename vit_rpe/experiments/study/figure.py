"""The pictures of a study: values and paired differences with 95 % intervals, other image sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_rpe.extras import import_extra
from vit_rpe.files import atomic_write
from vit_rpe.report import MARK

from .file import Study
from .results import last
from .statistics import Estimate, estimate
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


def draw_sizes(study: Study, values: Sequence[Value], path: Path) -> None:
    """Draw the metric of each setting against the image size, with one deviation over the seeds.

    The size of the training is among them; settings without other sizes are left out.
    """
    figures = import_extra("matplotlib.figure", "report", "the picture of a study")
    shown = [each for each in values if any("sizes" in record for record in each.records)]
    figure = figures.Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    levels = [dict(each.levels) for each in shown]
    for each in shown:
        points = _by_size(study, each)
        deviations = [value.deviation or 0.0 for value in points.values()]
        means = [value.mean for value in points.values()]
        label = labels_of(each.levels, levels) or study.name
        axes.errorbar(
            list(points), means, deviations, label=label, marker="o", markersize=3, capsize=2
        )
    axes.set_xlabel("pixels a side")
    axes.set_ylabel("top-1, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    with atomic_write(path) as file:
        figure.savefig(file, dpi=150, format="png")


def _by_size(study: Study, value: Value) -> dict[int, Estimate]:
    """Return the estimates of a setting by image size, smallest first."""
    found: dict[int, list[float]] = {}
    for record in value.records:
        if study.metric == "eval_top1" and "img_size" in record["settings"]:
            found.setdefault(int(record["settings"]["img_size"]), []).append(last(record, study))
        for size, top1 in record.get("sizes", {}).items():
            found.setdefault(int(size), []).append(float(top1))
    return {size: estimate(found[size]) for size in sorted(found)}


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
