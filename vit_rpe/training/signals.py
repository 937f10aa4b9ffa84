"""Stopping in good order: a signal sets a flag, and all ranks act on it at the same step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """While it is entered, SIGTERM, SIGUSR1 and SIGINT ask for a stop; a second SIGINT insists."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopFlag:
        for each in SIGNALS:
            self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked == "SIGINT":
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
