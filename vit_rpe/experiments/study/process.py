"""One trial at work: its commands as processes of one thread, one after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ATTEMPTS = "attempts.jsonl"  # in the folder of a trial: when its processes ran, and how they ended


class TrialProcess:
    """The commands of `vit-rpe` that make a trial; it fails with the first that fails."""

    def __init__(self, commands: Sequence[Sequence[str]], folder: Path):
        self.folder, self._left = folder, list(commands)
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._began = 0.0
        self._begin()

    def poll(self) -> int | None:
        """Return the exit code when all has ended, None before."""
        assert self._process is not None
        if self._process.returncode is not None:
            return self._process.returncode
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._note(code, usage.ru_utime + usage.ru_stime)
        if code == 0 and self._left:
            self._begin()
            return None
        return code

    def stop(self, kill: bool = False) -> None:
        """Ask the process to save and end, or end it."""
        assert self._process is not None
        if self._process.returncode is None:  # not Popen's own way, which would lose the CPU time
            os.kill(self._process.pid, signal.SIGKILL if kill else signal.SIGTERM)
            os.kill(self._process.pid, signal.SIGCONT)  # somebody may have paused it
        self._left = []

    def tail(self) -> str:
        """Return the last line that was written."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def _begin(self) -> None:
        command = self._left.pop(0)
        self._began = time.time()
        self._file = open(self.log, "ab")  # noqa: SIM115  closed by _note()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vit_rpe", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us, and we tell them
        )

    def _note(self, code: int, cpu: float) -> None:
        assert self._file is not None
        self._file.close()
        seconds = time.time() - self._began
        entry = {"began": self._began, "seconds": seconds, "cpu_seconds": cpu, "code": code}
        with open(self.folder / ATTEMPTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def cost_of(folder: Path) -> dict[str, float]:
    """Return the time of all processes of a trial, by the clock and of the CPU."""
    path = folder / ATTEMPTS
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines]
    names = ("seconds", "cpu_seconds")
    return {name: round(sum(entry[name] for entry in entries), 1) for name in names}


def _environment() -> dict[str, str]:
    """Return our environment for one thread, and for the code that we are of."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(THREADS, "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}
