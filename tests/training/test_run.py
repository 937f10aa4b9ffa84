"""A run is made once: its folder, its modality, what each process gets of a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.runs import TINY
from vit_rpe.data import Images, Videos
from vit_rpe.training import Recipe, RecipeError
from vit_rpe.training.recipe.file import check
from vit_rpe.training.run import make_run, run_folder


def recipe(**keys: Any) -> Recipe:
    return check({**TINY, "data_dir": "x", **keys}, {}, "a.yaml")


def processes(count: int, precision: str = "no") -> Any:
    return SimpleNamespace(num_processes=count, process_index=0, mixed_precision=precision)


def test_a_run_settles_what_the_recipe_leaves_open():
    run = make_run(recipe(batch_size=24), processes(3, "bf16"), Path("x"))
    assert (run.per_rank, run.world_size, run.rank) == (8, 3, 0)
    assert run.recipe.amp is True and run.recipe.amp_dtype == "bfloat16"
    assert isinstance(run.modality, Images)
    smaller = run.with_recipe(run.recipe.model_copy(update={"batch_size": 12}))
    assert smaller.per_rank == 4 and smaller.modality is run.modality


def test_a_recipe_with_frames_has_videos():
    keys = {"model": "performer_rpe3d_tiny_patch16_224", "num_frames": 4, "frame_stride": 2}
    run = make_run(recipe(**keys, val_clips=3), processes(1), Path("x"))
    assert run.modality == Videos(4, stride=2, clips=3)


def test_a_batch_without_equal_parts_is_refused():
    with pytest.raises(RecipeError, match="batch_size 8 has no equal parts for 3 processes"):
        make_run(recipe(batch_size=8), processes(3), Path("x"))


def test_runs_are_kept_in_output():
    assert run_folder(recipe(output="~/runs", experiment="a/b")) == Path.home() / "runs/a/b"
    assert run_folder(recipe()) == Path("runs/run")
