"""The log of a run: summary.csv, log.jsonl, steps.f64 and trackers."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from torch import Tensor

from vit_rpe.files import atomic_write, read_regular

from ..run import Run
from .steps import ROW, STEPS, Outcome

SUMMARY, LOG, TRACKER = "summary.csv", "log.jsonl", "tensorboard"
COLUMNS = ("epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr")  # timm's
LARGEST = 1 << 28  # bytes of a log that is read
EMA_COLUMNS = ("ema_loss", "ema_top1", "ema_top5")


class RunLog:
    """The files and trackers of a run; only the main process writes."""

    def __init__(self, run: Run):
        self.folder, self.accelerator, self.active = run.folder, run.accelerator, run.is_main
        self.columns: tuple[str, ...] = COLUMNS + (EMA_COLUMNS if run.recipe.model_ema else ())
        self._part = run.recipe.validation if run.recipe.val_fraction else None
        self._file: TextIO | None = None
        self._steps: BinaryIO | None = None

    def open(
        self,
        step: int,
        position: int,
        history: Sequence[dict[str, Any]],
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Begin, or resume after `step`: what an earlier process wrote beyond it is cut off."""
        if self.active:
            path = self.folder / LOG
            path.touch()
            os.truncate(path, min(position, path.stat().st_size))
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
            self._steps = open(self.folder / STEPS, "ab", buffering=0)  # noqa: SIM115
            self._steps.truncate(step * ROW.size)  # or longer, where steps were not recorded
            self._summary(history)
        options = {TRACKER: {"purge_step": step}}
        self.accelerator.init_trackers(TRACKER, init_kwargs=options)
        if settings is not None:
            self._tell_wandb(settings)

    def position(self) -> int:
        """Return the length of the log, which is on disk by then: a checkpoint remembers it."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, event: str, step: int, **values: Any) -> None:
        """Append a line to log.jsonl; the trackers get its numbers."""
        if self._file is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            line = {"event": event, "step": step, **_plain(values), "time": now}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            numbers = {f"{event}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
            if numbers:
                self.accelerator.log(numbers, step=step)

    def write_step(self, outcome: Outcome) -> None:
        """Append the figures of a step to steps.f64."""
        if self._steps is not None:
            self._steps.write(ROW.pack(*outcome))

    def picture(self, name: str, pixels: Tensor, step: int) -> None:
        """Show a picture in TensorBoard: bytes (1 or 3 colors, rows, columns)."""
        for tracker in self.accelerator.trackers:
            if tracker.name == TRACKER:
                tracker.log_images({name: pixels[None].numpy()}, step=step)  # pyright: ignore

    def write_epochs(self, history: Sequence[dict[str, Any]]) -> None:
        """Rewrite summary.csv, with a row for each epoch."""
        if self.active:
            self._summary(history)

    def close(self) -> None:
        """Close the log and the trackers."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
        if self._file is not None and self._steps is not None:
            self._file.close()
            self._steps.close()
            self._file = self._steps = None

    def _summary(self, history: Sequence[dict[str, Any]]) -> None:
        """Write all rows that the checkpoint knows, so that no epoch appears twice.

        Figures of a part of the training split are marked as such by one more column.
        """
        text = io.StringIO()
        part = {} if self._part is None else {"evaluated": self._part}
        columns = (*self.columns, *part)
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **part} for row in history)
        with atomic_write(self.folder / SUMMARY) as file:
            file.write(text.getvalue().encode())

    def _tell_wandb(self, settings: dict[str, Any]) -> None:
        for tracker in self.accelerator.trackers:
            if tracker.name == "wandb":
                tracker.store_init_configuration(settings)


def read_summary(run: str | Path) -> list[dict[str, float]]:
    """Return the numbers of each epoch of a run, by the columns of its summary.csv."""
    with open(Path(run) / SUMMARY, newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {*COLUMNS, *EMA_COLUMNS}
    return [{k: float(v) for k, v in row.items() if k in wanted and v} for row in rows]


def read_log(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a run's log, and the number of those that cannot be read."""
    try:
        text = read_regular(run / LOG, LARGEST).decode(errors="replace")
    except FileNotFoundError:
        return [], 0
    lines, damaged = [], 0
    for each in text.splitlines():
        try:
            line = json.loads(each)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict) and _is_step(line.get("step")):
            lines.append(line)
        else:
            damaged += bool(each.strip())
    return lines, damaged


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53  # what a float, and so a page, can count to


def json_number(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinity become strings."""
    return value if math.isfinite(value) else str(value)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: json_number(value) if isinstance(value, float) else value
        for name, value in values.items()
    }
