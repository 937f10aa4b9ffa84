"""Processes that read ahead: they leave signals to their parent, and do not outlive it.

`timeout`, systemd and SLURM signal every process of a job. A worker that died of it would take the
run down before it has saved; the parent decides when its workers end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.context import DefaultContext

LEFT_TO_PARENT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Worker(multiprocessing.Process):
    """A process that leaves signals to its parent and ends with it."""

    def run(self) -> None:
        # blocked, not ignored: torch's own handlers, which come later, cannot undo it
        signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
        threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
        super().run()

    def terminate(self) -> None:
        """Kill the process, because SIGTERM would not reach it."""
        self.kill()


class WorkerContext(DefaultContext):
    """A multiprocessing context that makes Workers, started in Python's default way."""

    Process = Worker  # pyright: ignore

    def __init__(self) -> None:
        super().__init__(multiprocessing.get_context())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
