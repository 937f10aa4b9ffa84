"""What a run writes down: summary.csv, log.jsonl, trackers; and the bar that people look at."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from accelerate import Accelerator
from tqdm import tqdm

SUMMARY, LOG, TRACKER = "summary.csv", "log.jsonl", "tensorboard"
COLUMNS = ("epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr")  # timm's
EMA_COLUMNS = ("ema_loss", "ema_top1", "ema_top5")


class RunLog:
    """The files of a run. On other processes than the main one it does nothing."""

    def __init__(self, run: Path, accelerator: Accelerator, columns: Sequence[str]):
        self.run, self.accelerator, self.columns = run, accelerator, columns
        self.active = accelerator.is_main_process
        self._file: TextIO | None = None

    def open(
        self,
        step: int,
        position: int,
        history: Sequence[dict[str, Any]],
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Begin, or go on after `step`: what an earlier process wrote beyond it is cut off."""
        if self.active:
            path = self.run / LOG
            path.touch()
            os.truncate(path, min(position, path.stat().st_size))
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
            self._summary(history)
        options = {TRACKER: {"purge_step": step}}
        self.accelerator.init_trackers(TRACKER, init_kwargs=options)
        if settings is not None:
            self._tell_wandb(settings)

    def position(self) -> int:
        """The length of the log, on disk for sure: a checkpoint remembers it."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, event: str, step: int, **values: Any) -> None:
        if self._file is not None:
            line = {"event": event, "step": step, **_plain(values)}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            numbers = {f"{event}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
            if numbers:
                self.accelerator.log(numbers, step=step)

    def epochs(self, history: Sequence[dict[str, Any]]) -> None:
        if self.active:
            self._summary(history)

    def close(self) -> None:
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _summary(self, history: Sequence[dict[str, Any]]) -> None:
        """Rewritten whole from what the checkpoint knows, so that no epoch appears twice."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        part = self.run / f".{SUMMARY}"
        part.write_text(text.getvalue())
        part.replace(self.run / SUMMARY)

    def _tell_wandb(self, settings: dict[str, Any]) -> None:
        for tracker in self.accelerator.trackers:
            if tracker.name == "wandb":
                tracker.store_init_configuration(settings)


class ProgressBar:
    """A bar on a terminal, plain lines elsewhere; nothing on other processes than the main one."""

    def __init__(self, total: int, done: int, active: bool):
        self.total, self.active = total, active
        self._bar = None
        if active and sys.stderr.isatty():
            form = (
                "{desc} {percentage:3.0f}% |{bar:20}| {n}/{total} [{elapsed}<{remaining}]{postfix}"
            )
            self._bar = tqdm(total=total, initial=done, bar_format=form)

    def update(self, epoch: str, text: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(epoch, refresh=False)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()

    def line(self, text: str) -> None:
        """What stays: above the bar, or as a line of its own."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif self.active:
            print(text, file=sys.stderr, flush=True)

    def step_line(self, text: str) -> None:
        """What a bar shows anyway."""
        if self._bar is None:
            self.line(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become strings."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
