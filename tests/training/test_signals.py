"""Signals to whole jobs, killed launchers and stuck ranks: what is left is a run that goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.training import launch
from tests.training.launch import PATIENCE
from tests.training.runs import make_data, progress, write_recipe
from vit_rpe.data import FolderLock
from vit_rpe.data.worker import Worker
from vit_rpe.training import Stopped
from vit_rpe.training.loop.signals import StopFlag

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(tmp_path) -> str:
    values = {"data_dir": make_data(tmp_path / "data"), "output": str(tmp_path), "resume": "auto"}
    return write_recipe(tmp_path / "a.yaml", **values, epochs=4000, workers=1)


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.02)


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[list[Any], list[Any]]]]:
    """Processes that are gone after the test, whatever came of it."""
    started: list[Any] = []

    def start(*args: Any, **options: Any) -> tuple[list[Any], list[Any]]:
        processes, pipes = launch.begin(*args, **options)
        started.extend(processes)
        return processes, pipes

    yield start
    for process in started:
        process.kill()


def has_steps(folder: Path, number: int = 3) -> Callable[[], bool]:
    log = folder / "a" / "log.jsonl"
    return lambda: log.exists() and log.read_text().count("\n") >= number


def train_as_a_job(recipe: str, errors: str, *overrides: str) -> int:
    """A run with a process group of its own, its standard error in a file."""
    from vit_rpe.training import main

    multiprocessing.set_start_method("fork", force=True)  # what train.py has by itself
    os.setpgid(0, 0)
    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    return main(["--recipe", recipe, *overrides])


def ended(processes: list[Any], pipes: list[Any]) -> list[Any]:
    """What main() gave on each rank, or the exit code where it could not give anything."""
    answers = []
    for process, pipe in zip(processes, pipes, strict=True):
        try:
            assert pipe.poll(PATIENCE), "no answer in time"
            answers.append(pipe.recv()[1])
        except EOFError:
            process.join(PATIENCE)
            answers.append(process.exitcode)
    return answers


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_before_the_first_step_a_signal_stops_at_once(number):
    with pytest.raises(Stopped, match=f"stopped by {number.name} before the first step"):
        with StopFlag():
            os.kill(os.getpid(), number)
            time.sleep(1)


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


def test_a_signal_while_modules_are_imported(tmp_path):
    """The first thing that train.py does, so it is the same at all moments before main()."""
    (tmp_path / "vit_rpe.py").write_text(
        "print('importing', flush=True)\nimport time\ntime.sleep(60)"
    )
    (tmp_path / "train.py").write_text((ROOT / "train.py").read_text())
    command = [sys.executable, str(tmp_path / "train.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 75


def test_a_stuck_rank_ends_the_run_and_is_named(recipe, tmp_path, begin):
    errors, options = str(tmp_path / "err"), ("collective_timeout=2", "workers=0", "val_split=null")
    processes, _ = begin(train_as_a_job, recipe, errors, *options, world=2)
    until(has_steps(tmp_path))
    until(lambda: "step" in (tmp_path / "a" / ".ranks" / "1.json").read_text())
    os.kill(processes[1].pid, signal.SIGSTOP)
    processes[0].join(20)
    assert processes[0].exitcode == 4
    shown = (tmp_path / "err").read_text()
    line = [each for each in shown.splitlines() if "error" in each]
    assert len(line) == 1 and line[0].startswith("train.py: error: rank 0 has been at "), shown
    assert ", collective_timeout is 2 s; rank 1 was last seen at " in line[0]
    assert line[0].endswith(" s ago") and "Traceback" not in shown
    with FolderLock(tmp_path / "a", "run"):  # that of a dead owner is in nobody's way
        pass


def launch_ranks(recipe: str, errors: str, path: str) -> None:
    """Stand for `accelerate launch`: the parent of two ranks, which waits for them."""
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    context, port = multiprocessing.get_context("fork"), launch._free_port()
    pipe, args = Mock(), (recipe, errors, "workers=0")  # nobody is left to ask for results
    ranks: list[Any] = []
    for rank in range(2):
        ranks.append(
            context.Process(target=launch._child, args=(pipe, rank, 2, port, train_as_a_job, args))
        )
        ranks[-1].start()
    Path(path).write_text(" ".join(str(rank.pid) for rank in ranks))
    for rank in ranks:
        rank.join()


def test_ranks_whose_launcher_was_killed_save_and_end(recipe, tmp_path, begin):
    processes, _ = begin(launch_ranks, recipe, str(tmp_path / "err"), str(tmp_path / "pids"))
    until(has_steps(tmp_path))
    ranks = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    processes[0].kill()
    until(lambda: all(map(gone, ranks)), 30)
    shown = (tmp_path / "err").read_text()
    assert progress(tmp_path / "a")["step"] >= 3
    assert "SIGTERM: stopping after this step" in shown and "Traceback" not in shown, shown
