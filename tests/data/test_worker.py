"""Workers of a loader, which no signal but the last ends."""

from __future__ import annotations

import os
import signal
import time

from vit_rpe.data.worker import Worker


def _sleep() -> None:
    time.sleep(60)


def test_a_worker_that_is_stuck_can_be_ended():
    worker = Worker(target=_sleep)
    worker.start()
    assert worker.pid is not None
    time.sleep(0.2)
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(0.2)
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == -signal.SIGKILL
