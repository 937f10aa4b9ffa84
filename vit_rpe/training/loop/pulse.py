"""Signs of life of ranks that train together: one that is stuck ends the run, and is named.

Each rank writes down where it is, in `RUN/.ranks/`, from a thread. A rank that stays at one place
for too long most likely waits for another in a collective operation, which nothing can interrupt:
its thread looks at what the others wrote, says who is behind, and ends the process. A rank that is
busy still beats; one that does not is stuck, also where ranks may be slow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

STUCK = 4  # exit code
PATIENCE = 7200.0  # seconds for what may be slow: the start, the first step, saving
BEAT = 2.0  # seconds between two signs of life, or less where the time-out is short


class Pulse:
    """Beats while it is entered; with one process there is nobody to wait for, and it does nothing.

    Ranks whose launcher was killed stop as by SIGTERM: nobody would look after them.
    """

    def __init__(self, run: Path, rank: int = 0, world: int = 1, timeout: float = PATIENCE):
        self.folder, self.rank, self.world, self.timeout = run / ".ranks", rank, world, timeout
        self.interval = min(BEAT, timeout / 4)
        self._place, self._since, self._limit = "the start", monotonic(), PATIENCE
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._done = threading.Event()

    def __enter__(self) -> Pulse:
        if self.world > 1:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()
            threading.Thread(target=self._watch, name="pulse", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self.world > 1 and self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def at(self, place: str, slow: bool = False) -> None:
        """Say where this rank is now; a slow place may take as long as the start of a run."""
        self._place, self._since = place, monotonic()
        self._limit = max(PATIENCE, self.timeout) if slow else self.timeout

    def _watch(self) -> None:
        while not self._done.wait(self.interval):
            with suppress(OSError):
                self._write()
            if self._parent not in (None, os.getppid()):
                self._parent = None
                os.kill(os.getpid(), signal.SIGTERM)
            waited = monotonic() - self._since
            if waited > self._limit or (waited > self.timeout and self._silent(self.timeout)):
                self._give_up(waited)

    def _write(self) -> None:
        self._file(self.rank).write_text(json.dumps(self._place))

    def _file(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"

    def _give_up(self, waited: float) -> None:
        silent = self._silent(3 * self.interval)
        if all(rank in silent for rank in range(self.rank)):  # one rank speaks for all
            behind = silent or self._elsewhere()
            named = [f"rank {rank} was last seen at {place}" for rank, place in behind.items()]
            text = "; ".join(named) or "no rank is known to be behind"
            here = f"rank {self.rank} has been at {self._place} for {waited:.0f} s"
            limit = f"collective_timeout is {self.timeout:g} s"
            os.write(2, f"train.py: error: {here}, {limit}; {text}\n".encode())
        else:
            self._done.wait(2 * self.interval)
        os._exit(STUCK)

    def _silent(self, seconds: float) -> dict[int, str]:
        """Ranks without a sign of life for longer, with their last; by the file system's clock."""
        found = {}
        for rank in self._others():
            with suppress(OSError):  # the main rank has ended, and has tidied up
                age = self._file(self.rank).stat().st_mtime - self._file(rank).stat().st_mtime
                if age > seconds:
                    found[rank] = f"{self._seen(rank)}, {age:.0f} s ago"
        return found

    def _elsewhere(self) -> dict[int, str]:
        """Ranks that are alive, but not where this one is."""
        seen = {rank: self._seen(rank) for rank in self._others()}
        return {rank: place for rank, place in seen.items() if place != self._place}

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    def _seen(self, rank: int) -> str:
        with suppress(OSError, ValueError):
            return str(json.loads(self._file(rank).read_text()))
        return "an unknown place"
