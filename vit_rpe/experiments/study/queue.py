"""Trials one after the other, some at a time, until all have ended or somebody asks to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

from .trials import Trial

STOPPED = 75  # the exit code of a run that has saved and can go on
POLL = 0.5  # seconds


class Running(Protocol):
    def poll(self) -> int | None: ...

    def stop(self, kill: bool = False) -> None: ...


class Watcher(Protocol):
    """A listener that is told about the trials: it shows them, and keeps their results."""

    def started(self, trial: Trial, running: Any) -> None: ...

    def ended(self, trial: Trial, running: Any, code: int) -> bool:
        """Take note of the end of a trial; return whether it is done."""
        ...

    def look(self, running: dict[Trial, Any]) -> None: ...


class StopRequest:
    """SIGTERM, SIGUSR1 and SIGINT while entered: the first asks to stop, the second insists."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, _: int, __: FrameType | None) -> None:
        self.count += 1


def work_off(
    trials: Iterable[Trial],
    jobs: int,
    start: Callable[[Trial], Any],
    watcher: Watcher,
    stop: StopRequest,
    poll: float = POLL,
) -> tuple[list[Trial], bool]:
    """Run all trials, `jobs` at a time; return those that failed, and whether it was stopped."""
    waiting, running, failed = list(trials), dict[Trial, Any](), list[Trial]()
    told = 0
    while running or (waiting and not stop.count):
        while waiting and len(running) < jobs and not stop.count:
            trial = waiting.pop(0)
            running[trial] = start(trial)
            watcher.started(trial, running[trial])
        if stop.count > told:
            told = stop.count
            for each in running.values():
                each.stop(kill=told > 1)
        for trial, each in list(running.items()):
            code = each.poll()
            if code is not None:
                del running[trial]
                done = watcher.ended(trial, each, code)
                if not done and not stop.count:
                    failed.append(trial)
        watcher.look(running)
        if running:
            time.sleep(poll)
    return failed, bool(stop.count)
