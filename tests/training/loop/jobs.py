"""Runs with several processes to which a test does something."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.launch import PATIENCE


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.02)


def has_steps(folder: Path, number: int = 3) -> Callable[[], bool]:
    log = folder / "a" / "log.jsonl"
    return lambda: log.exists() and log.read_text().count("\n") >= number


def train_as_a_job(recipe: str, errors: str, *overrides: str) -> int:
    """A run with a process group of its own, its standard error in a file."""
    from vit_rpe.cli.train import main

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
