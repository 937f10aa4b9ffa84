"""A dry run makes everything once, with the data or with random samples."""

from __future__ import annotations

import pytest

from tests.training.launch import train
from tests.training.runs import write_recipe
from tests.training.video_runs import VIDEO, make_videos


def test_a_dry_run_without_data_uses_random_images(tmp_path):
    recipe = write_recipe(tmp_path / "a.yaml", data_dir=str(tmp_path / "none"), mixup=0.5)
    for world in (1, 2):
        code, shown = train("--recipe", recipe, "--dry-run", "grad_accum_steps=2", world=world)
        assert code == 0, shown
        assert "no shards (.tar) at" in shown and "random images stand in" in shown
        processes = "1 process" if world == 1 else "2 processes"
        assert f"({processes} x 2 pieces x {4 // world})" in shown and "passed" in shown


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("wrong")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    return write_recipe(folder / "tiny.yaml", **values)


def test_a_dry_run_makes_its_own_clips(tmp_path, recipe):
    options = (f"data_dir={tmp_path}/none", "frame_stride=3", "grad_accum_steps=2")
    code, shown = train("--recipe", recipe, "--dry-run", *options)
    assert code == 0 and "random clips stand in" in shown and "G for a clip" in shown
