"""Orderly stops: a signal sets a flag, and all ranks act on it at the same step."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from ..distributed import launched_rank
from ..errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """A flag that SIGTERM, SIGUSR1 or SIGINT raises while it is entered; a second SIGINT insists.

    Before `begin` there is nothing to save, so a signal stops at once.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self._begun = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopFlag:
        for each in SIGNALS:
            self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if self.asked and not self._begun and kind is not None and issubclass(kind, Exception):
            raise self._stopped() from None  # it failed because other ranks also left

    def begin(self) -> None:
        """Let signals wait for the step and the checkpoint from now on."""
        self._begun = True

    def _ask(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked == "SIGINT":
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
        if not self._begun:
            raise self._stopped()
        if launched_rank() == 0:
            again = "; press Ctrl-C again to end without saving" * (number == signal.SIGINT)
            # not by print: the signal may have come in the middle of one
            os.write(2, f"\n{self.asked}: stopping after this step{again}\n".encode())

    def _stopped(self) -> Stopped:
        return Stopped(f"stopped by {self.asked} before the first step")
