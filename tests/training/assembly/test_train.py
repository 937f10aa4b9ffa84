"""Stop anywhere, resume, and all is bit-equal to the run that was not stopped."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import launch
from tests.training.runs import RICH, assert_same_run, losses, make_data, progress, write_recipe
from tests.training.stops import run_and_stop, run_to_end

STEPS = 15  # 3 epochs of 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, Path]:
    """A run that was never stopped, with one and with two processes."""
    folder = tmp_path_factory.mktemp("whole")
    write_recipe(
        folder / "tiny.yaml",
        **{**RICH, "data_dir": make_data(folder / "data"), "output": str(folder), "resume": "auto"},
    )
    runs = {}
    for world in (1, 2):
        assert (
            launch(run_to_end, str(folder / "tiny.yaml"), f"experiment=whole{world}", world=world)
            == [0] * world
        )
        runs[world] = folder / f"whole{world}"
    return runs


def test_the_run_itself(whole):
    for run in whole.values():
        state = progress(run)
        assert state["step"] == STEPS and state["epoch"] == 3 and len(state["history"]) == 3
        assert [step for step, *_ in losses(run)] == list(range(1, STEPS + 1))


STOPS = [
    (1, {"where": "step", "at": 6, "rank": 0, "signal": signal.SIGTERM}),  # in mid-epoch
    (1, {"where": "step", "at": 4, "rank": 0, "signal": signal.SIGUSR1}),  # last of an epoch
    (1, {"where": "evaluation", "at": 5, "rank": 0, "signal": signal.SIGINT}),  # of the average
    (2, {"where": "step", "at": 7, "rank": 1, "signal": signal.SIGTERM}),
    (2, {"where": "evaluation", "at": 1, "rank": 1, "signal": signal.SIGUSR1}),
]


@pytest.mark.parametrize(
    ("world", "stop"),
    STOPS,
    ids=lambda v: str(v if isinstance(v, int) else v["where"] + str(v["at"])),
)
def test_a_stopped_run_goes_on_bit_equal(whole, world, stop):
    run = whole[world].parent / f"stopped-{world}-{stop['where']}-{stop['at']}"
    recipe, name = str(run.parent / "tiny.yaml"), f"experiment={run.name}"
    assert launch(run_and_stop, recipe, stop, name, world=world) == [75] * world
    state = progress(run)
    assert state["step"] < STEPS
    if stop["where"] == "evaluation":
        assert state["step"] == 5 and state["epoch"] == 0
    else:
        assert state["step"] == stop["at"] + 1
    assert launch(run_to_end, recipe, name, world=world) == [0] * world
    assert_same_run(run, whole[world])


def run_and_die(recipe: str, where: str, at: int, *overrides: str) -> int:
    """kill -9 before a step, or in the middle of writing a checkpoint."""
    from vit_rpe.training.loop import trainer
    from vit_rpe.training.record import checkpoint

    if where == "step":
        train_step = trainer.Trainer.train_step

        def dying(self: Any, batch: Any) -> Any:
            if self.state.step == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return train_step(self, batch)

        trainer.Trainer.train_step = dying
    else:
        count, system = 0, {name: getattr(os, name) for name in ("fsync", "replace", "rename")}

        def counted(name: str) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return system[name](*args, **options)

            return call

        for name in system:
            setattr(checkpoint.os, name, counted(name))
    return run_to_end(recipe, *overrides)


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_equal(whole):
    """Killed again and again, at random steps and at random moments of saving."""
    run = whole[1].parent / "killed"
    recipe = str(run.parent / "tiny.yaml")
    overrides = (f"experiment={run.name}", "recovery_interval=2")
    draw = random.Random(int(os.environ.get("VIT_RPE_KILL_SEED", "0")))
    kills = 0
    for attempt in range(8):
        where = "step" if attempt % 2 else "saving"
        last = progress(run)["step"] if (run / "checkpoints" / "last").exists() else 0
        if last == STEPS:
            break
        at = draw.randrange(last, STEPS) if where == "step" else draw.randrange(1, 20)
        code = launch(run_and_die, recipe, where, at, *overrides, fails=True)[0]
        kills += code == -signal.SIGKILL
        for link in (run / "checkpoints").glob("last"):
            assert link.exists(), "last leads nowhere"
    assert kills >= 2
    assert launch(run_to_end, recipe, *overrides) == [0]
    assert_same_run(run, whole[1])
    left = {path.name for path in (run / "checkpoints").iterdir()}
    assert not any(name.startswith(".part") for name in left) and len(left) <= 6
