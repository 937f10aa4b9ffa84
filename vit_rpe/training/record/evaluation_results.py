"""Results of an evaluation on disk: the tables of one model in one folder, apart from others."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from ..evaluation import Evaluation

COLUMNS = (  # timm's results-*.csv
    *("model", "top1", "top1_err", "top5", "top5_err", "param_count", "img_size", "crop_pct"),
    *("interpolation", "loss", "calibration_error", "samples", "bad_samples"),
    *("img_per_s", "peak_memory_mb", "average", "data", "split", "val_fraction"),
)
# results of another are never written over
IDENTITY = ("model", "average", "data", "split", "val_fraction")
TABLES = ("per_class-*.csv", "confusion-*.csv")


def results_folder(output: Path, model: str, row: dict[str, Any]) -> Path:
    """Return a folder for this model on these data: that of its last evaluation, or a new one.

    It has the name of the model, the run, or the run and the checkpoint: `quickstart-best`.
    """
    path = Path(os.path.abspath(model))
    of_run = path.parent.name == "checkpoints"
    name = f"{path.parent.parent.name}-{path.name}" if of_run else path.name
    number, folder = 1, output / name
    while folder.exists() and not _is_of(folder, row):
        number += 1
        folder = output / f"{name}-{number}"
    return folder


def _is_of(folder: Path, row: dict[str, Any]) -> bool:
    """Whether a folder holds earlier results of the same model on the same data."""
    try:
        before = json.loads((folder / "results.json").read_text())[0]
        return all(before.get(name, 0.0) == row[name] for name in IDENTITY)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def save_results(
    path: Path, rows: list[dict[str, Any]], results: list[Evaluation], names: list[str]
) -> None:
    """Write the tables of one model: a row, a confusion matrix and classes for each resolution."""
    path.mkdir(parents=True, exist_ok=True)
    for old in (file for pattern in TABLES for file in path.glob(pattern)):
        old.unlink()
    with open(path / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (path / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row, result in zip(rows, results, strict=True):
        names = [*names, *map(str, range(len(names), result.num_classes))]
        table, accuracy = result.confusion(), result.per_class()
        with open(path / f"per_class-{row['img_size']}.csv", "w", newline="") as file:
            lines = zip(names, table.sum(1), accuracy.round(4), strict=True)
            csv.writer(file).writerows([("class", "samples", "top1"), *lines])
        with open(path / f"confusion-{row['img_size']}.csv", "w", newline="") as file:
            lines = ((name, *counts) for name, counts in zip(names, table.tolist(), strict=True))
            csv.writer(file).writerows([("true \\ predicted", *names), *lines])


def results_line(row: dict[str, Any], unit: str = "img") -> str:
    """Return a row in one line; `unit` is what is counted: images, or videos."""
    part = f", val_fraction {row['val_fraction']:g} of {row['split']}"
    return (
        f"{row['model']} at {row['img_size']}{part if row['val_fraction'] else ''}: "
        f"top-1 {row['top1']:.2f} %, top-5 {row['top5']:.2f} %, "
        f"loss {row['loss']:.4f}, calibration error {row['calibration_error']:.4f}, "
        f"{row['samples']} samples ({row['bad_samples']} bad), {row['img_per_s']:.0f} {unit}/s, "
        f"{row['peak_memory_mb']:.0f} MB"
    )
