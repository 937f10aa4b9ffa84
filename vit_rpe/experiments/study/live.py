"""The display of a study: a table that is drawn again on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from .trials import Trial

DRAW = 2.0  # seconds
TAIL = 4096  # bytes of a log that are read for its last lines


class Board:
    """The state of all trials on the screen; `steps` are those of each setting."""

    def __init__(
        self,
        trials: Sequence[Trial],
        done: Sequence[float],
        steps: dict[str, int],
        jobs: int,
        stream: TextIO | None = None,
    ):
        """Begin with `done` trials finished, each in so many seconds."""
        self.total, self.seconds, self.steps, self.jobs = len(trials), list(done), steps, jobs
        self.stream = sys.stderr if stream is None else stream
        self.failed = 0
        self._drawn, self._last = 0, 0.0
        self._width = max((len(trial.name) for trial in trials), default=0)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=self.stream, flush=True)

    def look(self, running: dict[Trial, Any]) -> None:
        """Draw the table again, on a terminal, every two seconds."""
        if not self.stream.isatty() or time.monotonic() - self._last < DRAW:
            return
        self._last = time.monotonic()
        lines = [self.summary(), *(self.row(trial, each.folder) for trial, each in running.items())]
        self.clear()
        self.stream.write("".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self._drawn = len(lines)

    def clear(self) -> None:
        """Take the table off the screen."""
        if self._drawn:
            self.stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def summary(self) -> str:
        """Say how many trials have ended, and about how long the others will take."""
        done, left = len(self.seconds), self.total - len(self.seconds) - self.failed
        text = f"{done} of {self.total} trials are done"
        text += f", {self.failed} failed" if self.failed else ""
        known = [each for each in self.seconds if each > 0]
        if known and left:
            text += f", about {hours(median(known) * left / self.jobs)} left"
        return text

    def row(self, trial: Trial, folder: Path) -> str:
        """Say how far a trial is."""
        last = last_line(folder / "log.jsonl")
        step, steps = last.get("step", 0), self.steps.get(trial.setting, 0)
        part = f"{step / steps:4.0%}" if steps else "    "
        speed = next((v for k, v in last.items() if k.endswith("_per_s")), None)
        rest = f"loss {last['loss']:.3f}" if isinstance(last.get("loss"), float) else ""
        rest += f", {speed:.0f}/s" if speed else ""
        return f"  {trial.name:<{self._width}}  {part}  {rest}"


def last_line(path: Path) -> dict[str, Any]:
    """Return the last whole line of training in a log of JSON lines."""
    try:
        with open(path, "rb") as file:
            file.seek(max(path.stat().st_size - TAIL, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("event") == "train":
            return found
    return {}


def hours(seconds: float) -> str:
    """Return a time in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
