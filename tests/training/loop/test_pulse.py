"""Stuck ranks and killed launchers end a run, and are named."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from tests.training import launch
from tests.training.loop.jobs import gone, has_steps, train_as_a_job, until
from tests.training.runs import progress
from vit_rpe.data import FolderLock
from vit_rpe.training.loop.pulse import Pulse


def test_of_ranks_that_live_those_elsewhere_are_behind(tmp_path):
    ranks = [Pulse(tmp_path, rank, 3, timeout=100) for rank in range(3)]
    for rank, place in zip(ranks, ("step 7", "data of step 7", "step 7"), strict=True):
        rank.status.open()
        rank.at(place)
        rank._beat()
    assert ranks[0]._silent(50) == {} and ranks[0]._elsewhere() == {1: "data of step 7"}
    (tmp_path / ".ranks" / "1.json").unlink()
    assert ranks[2]._elsewhere() == {1: "an unknown position"}


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
    assert len(line) == 1 and line[0].startswith("vit-rpe train: error: rank 0 has been at "), shown
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
    # which rank notices first, and says so, is a matter of chance
    assert "stopped by a signal after step" in shown and "Traceback" not in shown, shown
