"""The progress of a run on the screen."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from time import monotonic

from tqdm import tqdm

SILENCE = 20.0  # seconds after which a plain line is due, however few steps there were


class ProgressBar:
    """A bar on a terminal, plain lines elsewhere; only the main process is `active`."""

    def __init__(self, total: int, done: int, active: bool):
        self.total, self.active = total, active
        self._bar, self._last_line = None, -math.inf
        if active and sys.stderr.isatty():
            form = (
                "{desc} {percentage:3.0f}% |{bar:10}| {n}/{total} [{elapsed}<{remaining}]{postfix}"
            )
            self._bar = tqdm(total=total, initial=done, bar_format=form)

    def update(self, epoch: str, text: str) -> None:
        """Advance the bar by one step."""
        if self._bar is not None:
            self._bar.set_description_str(epoch, refresh=False)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()

    @property
    def is_silent(self) -> bool:
        """Whether nobody has seen anything for a while."""
        return self.active and self._bar is None and monotonic() - self._last_line > SILENCE

    def line(self, text: str) -> None:
        """Print a permanent line."""
        self._last_line = monotonic()
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif self.active:
            print(text, file=sys.stderr, flush=True)

    def step_line(self, text: str) -> None:
        """Print a line only if there is no progress bar."""
        if self._bar is None:
            self.line(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds: `1:02:03`."""
    return str(timedelta(seconds=round(seconds)))
