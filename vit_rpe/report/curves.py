"""Curves of a run: what its log says about each step and epoch, thinned where it is too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .run import RunRecord, number

OF_STEPS = {  # names in the log -> chart, and what multiplies the number
    "loss": ("loss", 1.0),
    "lr": ("lr", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "img_per_s": ("throughput", 1.0),
    "clips_per_s": ("throughput", 1.0),
    "data_wait": ("data_wait", 100.0),
    "memory_mb": ("memory", 1.0),
}
OF_EPOCHS = {  # columns of summary.csv -> chart, name
    "train_loss": ("loss", "training"),  # where no step has a line
    "eval_loss": ("loss", "weights"),
    "ema_loss": ("loss", "average"),
    "eval_top1": ("accuracy", "weights"),
    "ema_top1": ("accuracy", "average"),
}

Point = tuple[float, float]


def curves(run: RunRecord, most: int = 500) -> dict[str, list[dict[str, Any]]]:
    """Return the curves of each chart: a name, steps x, values y, and the points there were.

    A curve has at most some points.
    """
    charts: dict[str, list[dict[str, Any]]] = {}
    lines, epochs = run.lines("train"), run.lines("epoch")
    for name, (chart, factor) in OF_STEPS.items():
        points = _points(lines, name, factor)
        if name == "lr":  # a warmup may be over before the first line of a step
            points = sorted({**dict(_points(epochs, name)), **dict(points)}.items())
        if points:
            charts.setdefault(chart, []).append(_curve("training", points, most))
    for name, (chart, label) in OF_EPOCHS.items():
        points = _points(epochs, name)
        told = label in (curve["name"] for curve in charts.get(chart, []))
        if points and not told:
            charts.setdefault(chart, []).append(_curve(label, points, most))
    return charts


def skipped(run: RunRecord) -> list[int]:
    """Return the steps that were skipped because something was not finite."""
    return [line["step"] for line in run.lines("skipped")]


def _points(lines: Sequence[dict[str, Any]], name: str, factor: float = 1.0) -> list[Point]:
    found = [(float(line["step"]), number(line.get(name))) for line in lines]
    return [(x, factor * y) for x, y in found if y is not None]


def _curve(name: str, points: list[Point], most: int) -> dict[str, Any]:
    shown = thinned(points, most)
    x, y = zip(*shown, strict=True)
    return {"name": name, "x": x, "y": [float(f"{each:.6g}") for each in y], "of": len(points)}


def thinned(points: list[Point], most: int) -> list[Point]:
    """Keep at most `most` points: the lowest and the highest of equal parts, and both ends."""
    if len(points) <= most:
        return points
    parts = (most - 2) // 2
    kept = {0, len(points) - 1}
    for part in range(parts):
        first, last = (len(points) * p // parts for p in (part, part + 1))
        kept.add(min(range(first, last), key=lambda i: points[i][1]))
        kept.add(max(range(first, last), key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]
