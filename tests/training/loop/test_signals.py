"""Signals to whole jobs: what is left is a run that can be resumed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.training.loop.jobs import children, ended, gone, has_steps, train_as_a_job, until
from tests.training.runs import progress
from vit_rpe.training import Stopped
from vit_rpe.training.loop.signals import StopFlag


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_process_of_a_job_saves(recipe, tmp_path, begin, world, number):
    """As `timeout`, systemd and SLURM do it, and Ctrl-C on a terminal."""
    processes, pipes = begin(train_as_a_job, recipe, str(tmp_path / "err"), world=world)
    until(has_steps(tmp_path))
    workers = [worker for process in processes for worker in children(process.pid)]
    assert len(workers) == world
    for process in processes:
        os.killpg(process.pid, number)
    assert ended(processes, pipes) == [75] * world
    assert progress(tmp_path / "a")["step"] >= 3
    shown = (tmp_path / "err").read_text()
    again = "; press Ctrl-C again to end without saving" if number == signal.SIGINT else ""
    assert shown.count(f"{number.name}: stopping after this step{again}\n") == 1
    assert "Traceback" not in shown
    until(lambda: all(map(gone, workers)), 10)


def test_workers_end_with_a_killed_run(recipe, tmp_path, begin):
    processes, _ = begin(train_as_a_job, recipe, str(tmp_path / "err"), "workers=3")
    until(has_steps(tmp_path))
    workers = children(processes[0].pid)
    assert len(workers) == 3
    processes[0].kill()
    until(lambda: all(map(gone, workers)), 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_before_the_first_step_a_signal_stops_at_once(number):
    with pytest.raises(Stopped, match=f"stopped by {number.name} before the first step"):
        with StopFlag():
            os.kill(os.getpid(), number)
            time.sleep(1)


def test_a_stop_is_not_taken_for_an_error_of_what_was_going_on():
    """As it was of a C++ build, which then counted as impossible, and the run went on without."""
    with pytest.raises(Stopped), StopFlag():
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)
        except Exception:
            pass


def test_an_error_because_others_stopped_is_a_stop():
    with pytest.raises(Stopped), StopFlag() as stop:
        stop.asked = "SIGTERM"
        raise RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="by itself"), StopFlag():
        raise RuntimeError("by itself")


def test_a_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), StopFlag() as stop:
        stop.begin()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked == "SIGINT"
        os.kill(os.getpid(), signal.SIGINT)
