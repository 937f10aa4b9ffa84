"""Clips through the trainer: stopped and resumed, bit-equal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.training.launch import launch
from tests.training.runs import assert_same_run, progress, write_recipe
from tests.training.stops import run_and_stop, run_to_end
from tests.training.video_runs import VIDEO, make_videos


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, Path]:
    """A run on clips that was never stopped, with one and with two processes."""
    folder = tmp_path_factory.mktemp("video")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    recipe = write_recipe(folder / "tiny.yaml", **values, resume="auto")
    for world in (1, 2):
        codes = launch(run_to_end, recipe, f"experiment=whole{world}", world=world)
        assert codes == [0] * world
    return {world: folder / f"whole{world}" for world in (1, 2)}


@pytest.mark.parametrize(
    ("world", "where", "at"), [(1, "step", 6), (1, "evaluation", 2), (2, "step", 7)]
)
def test_a_stopped_run_goes_on_bit_equal(whole, world, where, at):
    run = whole[world].parent / f"stopped-{world}-{where}-{at}"
    recipe, name = str(run.parent / "tiny.yaml"), f"experiment={run.name}"
    stop = {"where": where, "at": at, "rank": world - 1, "signal": signal.SIGTERM}
    assert launch(run_and_stop, recipe, stop, name, world=world) == [75] * world
    assert progress(run)["step"] < 15
    assert '"clips_per_s"' in (run / "log.jsonl").read_text()
    assert launch(run_to_end, recipe, name, "workers=1", world=world) == [0] * world
    assert_same_run(run, whole[world], names=("last",))
