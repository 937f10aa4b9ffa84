"""A watch over ranks that train together: one that is stuck ends the run, and is named.

Each rank writes down where it is, from a thread. A rank that stays at one position for too long
most likely waits for another in a collective operation, which nothing can interrupt: its thread
looks at what the others wrote, says who is behind, and ends the process. A busy rank still beats;
one that does not is stuck, even where ranks may be slow.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

from vit_rpe.program import program

from ..distributed import SLOW, StatusFiles

STUCK = 4  # exit code
BEAT = 2.0  # seconds between two signs of life, or less where the timeout is short


class Pulse:
    """A beat and a watch while it is entered; a single process has nothing to watch.

    Ranks whose launcher was killed stop as by SIGTERM: nobody would look after them.
    """

    def __init__(self, run: Path, rank: int = 0, world_size: int = 1, timeout: float = SLOW):
        self.status, self.timeout = StatusFiles(run, rank, world_size), timeout
        self.interval = min(BEAT, timeout / 4)
        self._position, self._since, self._limit = "the start", monotonic(), SLOW
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._done = threading.Event()

    def __enter__(self) -> Pulse:
        if self.status.world_size > 1:
            self.status.open()
            self._beat()
            threading.Thread(target=self._watch, name="pulse", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self.status.world_size > 1:
            self.status.remove()

    def at(self, position: str, slow: bool = False) -> None:
        """Say where this rank is now; a slow position may take as long as the start of a run."""
        self._position, self._since = position, monotonic()
        self._limit = max(SLOW, self.timeout) if slow else self.timeout

    def _watch(self) -> None:
        while not self._done.wait(self.interval):
            with suppress(OSError):
                self._beat()
            if self._parent not in (None, os.getppid()):
                self._parent = None
                os.kill(os.getpid(), signal.SIGTERM)
            waited = monotonic() - self._since
            if waited > self._limit or (waited > self.timeout and self._silent(self.timeout)):
                self._give_up(waited)

    def _beat(self) -> None:
        self.status.write(self._position)

    def _give_up(self, waited: float) -> None:
        rank, silent = self.status.rank, self._silent(3 * self.interval)
        if all(lower in silent for lower in range(rank)):  # one rank speaks for all
            behind = silent or self._elsewhere()
            named = [f"rank {other} was last seen at {where}" for other, where in behind.items()]
            text = "; ".join(named) or "no rank is known to be behind"
            here = f"rank {rank} has been at {self._position} for {waited:.0f} s"
            limit = f"collective_timeout is {self.timeout:g} s"
            os.write(2, f"{program('train')}: error: {here}, {limit}; {text}\n".encode())
        else:
            self._done.wait(2 * self.interval)
        os._exit(STUCK)

    def _silent(self, seconds: float) -> dict[int, str]:
        """Return the ranks without a sign of life for longer, with their last."""
        last = self.status.positions()
        ages = self.status.silences()
        return {
            rank: f"{last[rank]}, {age:.0f} s ago" for rank, age in ages.items() if age > seconds
        }

    def _elsewhere(self) -> dict[int, str]:
        """Return the ranks that are alive, but not where this one is."""
        seen = self.status.positions()
        return {rank: where for rank, where in seen.items() if where != self._position}
