"""Figures of runs for notebooks and papers, by matplotlib (the extra `report`).

from vit_rpe.report import curves_figure, masks_figure
curves_figure("runs/a", "runs/b")
masks_figure("runs/a").savefig("masks.png")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from vit_rpe.extras import import_extra
from vit_rpe.training import Evaluation, from_bytes, offset_tables, read_exhibits

from .answers import shown_classes
from .colors import ABSENT, SERIES, WEIGHTS
from .curves import curves
from .run import RunRecord, read_run
from .subject import Subject, answers_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "loss": "loss",
    "accuracy": "top-1, %",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "throughput": "samples per second",
    "data_wait": "waiting for data, %",
    "memory": "peak memory, MB",
}
STYLES: dict[str, dict[str, Any]] = {
    "training": {"alpha": 0.6, "linewidth": 1.0},
    "average": {"linestyle": "--"},
}


def curves_figure(*runs: str | Path, charts: tuple[str, ...] = ("loss", "accuracy")) -> Figure:
    """Draw curves of one run or more: loss, accuracy, lr, grad_norm, throughput, ..."""
    records = [read_run(run) for run in runs]
    figure = _figure(4.6 * len(charts), 3.4)
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for number, record in enumerate(records):
            _draw_curves(axes, record, chart, SERIES[number % len(SERIES)], len(records) > 1)
        axes.set(title=TITLES[chart], xlabel="step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return figure


def masks_figure(source: str | Path | nn.Module, epoch: int | None = None) -> Figure:
    """Draw the masks of a model, or those that a run kept after an epoch (default: the last).

    A row for each layer, a column for each head; each head has its own scale. A mask over time is
    shown at the offset 0 in time.
    """
    tables = offset_tables(source) if isinstance(source, nn.Module) else _kept(source, epoch)
    if not tables:
        raise ValueError("no attention layer here has a mask over offsets")
    heads = max(len(table) for table in tables.values())
    figure = _figure(1.15 * heads + 1.2, 1.25 * len(tables) + 0.4)
    rows = figure.subplots(len(tables), heads, squeeze=False)
    for axes, (name, table) in zip(rows, tables.items(), strict=True):
        for head, place in enumerate(axes):
            place.set(xticks=[], yticks=[])
            if head < len(table):
                _draw_mask(place, table[head])
            place.set_frame_on(False)
        axes[0].set_ylabel(name, fontsize=7)
    for head, place in enumerate(rows[0]):
        place.set_title(f"head {head}", fontsize=8)
    return figure


def confusion_figure(run: str | Path) -> Figure:
    """Draw the confusion matrix of a run's best evaluation, as shares of the true class."""
    subject, result = _judged(run)
    shown = shown_classes(result)
    table = result.confusion()[np.ix_(shown, shown)]
    share = table / np.maximum(result.confusion().sum(1)[shown, None], 1)
    figure = _figure(1.6 + 0.4 * len(shown), 1.2 + 0.4 * len(shown))
    axes = figure.subplots()
    axes.imshow(np.ma.masked_equal(share, 0), cmap=_colors(), vmin=0, vmax=1)
    names = [subject.class_name(number) for number in shown]
    axes.set_xticks(range(len(shown)), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set(xlabel="predicted", ylabel="true")
    for (y, x), count in np.ndenumerate(table):
        if count and len(shown) <= 20:
            color = "white" if share[y, x] > 0.45 else "black"
            axes.text(x, y, str(count), ha="center", va="center", fontsize=7, color=color)
    return figure


def calibration_figure(run: str | Path) -> Figure:
    """Draw how often a run's best model was right, by its confidence."""
    _, result = _judged(run)
    count, confidence, right = result.calibration().T
    seen = count > 0
    figure = _figure(3.8, 3.4)
    axes = figure.subplots()
    width = 1 / len(count)
    axes.bar(
        (np.arange(len(count)) + 0.5) * width,
        right / np.maximum(count, 1),
        0.9 * width,
        color=SERIES[0],
        alpha=0.7,
    )
    axes.plot(confidence[seen] / count[seen], right[seen] / count[seen], "o", color="black", ms=4)
    axes.plot([0, 1], [0, 1], "--", color="gray", linewidth=1)
    axes.set(xlabel="confidence", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title(f"calibration error {result.calibration_error():.4f}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _figure(width: float, height: float) -> Figure:
    made = import_extra("matplotlib.figure", "report", "drawing figures")
    return made.Figure(figsize=(width, height), layout="constrained")


def _colors() -> Any:
    from matplotlib import colormaps

    return colormaps[WEIGHTS].with_extremes(bad=ABSENT)


def _draw_curves(axes: Axes, run: RunRecord, chart: str, color: str, several: bool) -> None:
    for number, curve in enumerate(curves(run).get(chart, [])):
        name = f"{run.name}, {curve['name']}" if several else curve["name"]
        own = color if several else SERIES[(6, 0, 1)[number % 3]]
        axes.plot(curve["x"], curve["y"], label=name, color=own, **STYLES.get(curve["name"], {}))


def _draw_mask(axes: Axes, weights: Tensor) -> None:
    from matplotlib.colors import PowerNorm

    plane = weights.detach().float().cpu()
    plane = plane[plane.shape[0] // 2] if plane.ndim == 3 else plane
    plane = np.ma.masked_equal(plane.reshape(-1, plane.shape[-1]).numpy(), 0.0)
    # a square root: small weights stay visible beside large ones
    norm = PowerNorm(0.5, 0.0, float(weights.max()) or 1.0)
    axes.imshow(plane, cmap=_colors(), norm=norm, interpolation="nearest")


def _kept(run: str | Path, epoch: int | None) -> dict[str, Tensor]:
    """Return the masks that a run kept after an epoch, by layer."""
    found, _ = read_exhibits(read_run(run).folder, "masks")
    known = {exhibit.epoch: exhibit.tensors for exhibit in found}
    if not known:
        return {}
    chosen = max(known) if epoch is None else epoch
    if chosen not in known:
        raise ValueError(f"{run} kept the masks of the epochs {sorted(known)}, not of {epoch}")
    tensors = known[chosen]
    names = [name for name in tensors if f"{name}:range" in tensors]
    return {name: from_bytes(tensors[name], tensors[f"{name}:range"]) for name in names}


def _judged(run: str | Path) -> tuple[Subject, Evaluation]:
    subject = answers_of(read_run(run))
    if subject.evaluation is None:
        raise ValueError(f"{run} kept no answers of an evaluation")
    return subject, subject.evaluation
