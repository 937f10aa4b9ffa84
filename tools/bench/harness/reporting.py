"""What a benchmark shows and keeps: tables, bars and their verdicts, a report as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import linear_regression
from typing import Any

import timm
import torch

import vit_rpe

# --- tables ------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three significant digits; a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def aligned(rows: list[list[str]], text: int = 1) -> str:
    """Columns of equal width: the first `text` ones and notes to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = [i < text or rows[0][i] == "note" for i in range(len(widths))]
    lines = []
    for row in rows:
        cells = zip(row, widths, left, strict=True)
        lines.append("  ".join(c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in cells))
    return "\n".join(f"  {line}".rstrip() for line in lines)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a line to the points by least squares and return its slope."""
    x, y = zip(*points, strict=True)
    return linear_regression(x, y).slope


# --- bars --------------------------------------------------------------------------------------


def judge(
    aim: str, measured: float, *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """Hold a measured number against its bar, a lower or an upper one."""
    if at_least is not None:
        return {"aim": aim, "bar": at_least, "measured": measured, "met": measured >= at_least}
    assert at_most is not None
    return {"aim": aim, "bar": at_most, "measured": measured, "met": measured <= at_most}


def verdict(judged: Mapping[str, Any]) -> str:
    return "met" if judged["met"] else "missed"


def exit_code(judged: Iterable[Mapping[str, Any]]) -> int:
    """Return 1 if a bar was missed, else 0."""
    return int(not all(bar["met"] for bar in judged))


# --- report ------------------------------------------------------------------------------------


def environment(device: str) -> dict[str, Any]:
    """Describe when and on what a benchmark runs."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "gpu": gpu},
        "versions": {
            "vit_rpe": vit_rpe.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }


def write_report(file: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report as JSON, if a file was asked for."""
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n")
