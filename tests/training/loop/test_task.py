"""A teacher of clips."""

from __future__ import annotations

import pytest

from tests.training.launch import train
from tests.training.runs import write_recipe
from tests.training.video_runs import VIDEO, make_videos


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("wrong")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    return write_recipe(folder / "tiny.yaml", **values)


def test_a_teacher_of_clips(tmp_path, recipe):
    kwargs = {**VIDEO["model_kwargs"], "img_size": 8, "num_frames": 4}
    teacher = str(tmp_path / "teacher")
    code, shown = train("--recipe", recipe, "epochs=2", "experiment=t", f"output={teacher}")
    assert code == 0, shown
    overrides = ["kd_model_name=performer_rpe3d_tiny_patch16_224", f"kd_model_kwargs={kwargs}"]
    overrides += [f"kd_checkpoint={teacher}/t", "epochs=2", "experiment=taught"]
    code, shown = train("--recipe", recipe, *overrides)
    assert code == 0, shown
