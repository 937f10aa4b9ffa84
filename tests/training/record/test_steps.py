"""The figures of every step: in order, cut where a run is resumed, none where none were kept."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vit_rpe.training.record.log import RunLog
from vit_rpe.training.record.steps import STEPS, Outcome, read_steps


def write(folder: Path, after: int, *outcomes: Outcome) -> None:
    """As a process does that begins or resumes after some steps."""
    accelerator = SimpleNamespace(trackers=[], init_trackers=lambda *_, **__: None)
    recipe = SimpleNamespace(model_ema=False, val_fraction=0, validation=None)
    run: Any = SimpleNamespace(folder=folder, accelerator=accelerator, is_main=True, recipe=recipe)
    log = RunLog(run)
    log.open(after, 0, [])
    for each in outcomes:
        log.write_step(each)
    log.close()


def outcome(step: int, loss: float = 0.1) -> Outcome:
    return Outcome(step, loss, 1 / 3, 1e-3, not math.isfinite(loss))


def test_what_is_written_is_read_to_the_last_bit(tmp_path):
    write(tmp_path, 0, outcome(1), outcome(2, math.inf))
    assert read_steps(tmp_path) == {1: outcome(1), 2: outcome(2, math.inf)}
    rows = np.fromfile(tmp_path / STEPS, "<f8").reshape(-1, 5)  # as docs/training.md says
    assert rows[:, 0].tolist() == [1, 2] and rows[:, 4].tolist() == [0, 1]


def test_steps_after_a_checkpoint_are_made_again(tmp_path):
    write(tmp_path, 0, outcome(1), outcome(2), outcome(3))
    write(tmp_path, 1, outcome(2, 0.2))
    assert read_steps(tmp_path) == {1: outcome(1), 2: outcome(2, 0.2)}


def test_steps_that_were_not_recorded_are_not_there(tmp_path):
    assert read_steps(tmp_path) == {}
    write(tmp_path, 2, outcome(3))  # the first two are those of an earlier version
    with open(tmp_path / STEPS, "ab") as file:
        file.write(b"killed here")
    assert read_steps(tmp_path) == {3: outcome(3)}
