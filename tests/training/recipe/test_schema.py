"""Keys that depend on one another: defaults that follow, and combinations that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import vit_rpe  # noqa: F401  registers the models
from tests.training.runs import TINY, write_recipe
from vit_rpe.training import RecipeError
from vit_rpe.training.recipe.file import check, load_recipe

ROOT = Path(__file__).parents[3]


WRONG = [
    ({"btach_size": 8}, "a.yaml: no key 'btach_size'; nearest is 'batch_size'"),
    ({"learning-rate": 8}, "a.yaml: no key 'learning-rate'"),
    ({"batch_size": "many"}, "a.yaml: batch_size: input should be a valid integer, got 'many'"),
    ({"batch_size": 8.5}, "a.yaml: batch_size: input should be a valid integer, got 8.5"),
    ({"batch_size": True}, "batch_size: input should be a valid integer, got True"),
    ({"batch_size": 0}, "batch_size: input should be greater than or equal to 1, got 0"),
    ({"lr": True}, "lr: input should be a valid number, got True"),
    ({"lr": -1.0}, "lr: input should be greater than 0, got -1.0"),
    ({"amp": "yes"}, "amp: input should be a valid boolean, got 'yes'"),
    ({"drop_path": 1.0}, "drop_path: input should be less than 1, got 1.0"),
    ({"sched": "cosin"}, "sched: input should be 'cosine', 'tanh'"),
    ({"scale": [0.1]}, "scale: list should have at least 2 items"),
    ({"scale": [0.9, 0.1]}, "scale goes from low to high, got [0.9, 0.1]"),
    ({"model": "performer_rpe2d_smal"}, "nearest is 'performer_rpe2d"),
    ({"model": "vit_tiny_patch16_22"}, "model: no model 'vit_tiny_patch16_22' in timm; nearest is"),
    ({"opt": "adamm"}, "opt: no optimizer 'adamm' in timm; nearest is 'adam"),
    ({"model_kwargs": [1]}, "model_kwargs: input should be a valid dictionary, got [1]"),
    ({"grad_accum_steps": 3}, "batch_size 8 has no equal parts for 1 process x grad_accum_steps 3"),
    ({"warmup_epochs": 3}, "warmup_epochs (3) must be below epochs (3)"),
    ({"min_lr": 1.0}, "min_lr (1) is above lr (0.01)"),
    ({"pretrained": True, "initial_checkpoint": "x"}, "two beginnings: give one"),
    ({"bce_sum": True}, "bce_sum needs bce_loss: true"),
    ({"bce_target_thresh": 0.2}, "bce_target_thresh needs bce_loss: true"),
    ({"bce_pos_weight": 2.0}, "bce_pos_weight needs bce_loss: true"),
    ({"kd_checkpoint": "x"}, "kd_checkpoint needs kd_model_name"),
    ({"kd_model_kwargs": {"depth": 2}}, "kd_model_kwargs needs kd_model_name"),
    ({"sched": "plateau", "val_split": None}, "plateau needs an evaluation after every epoch"),
    ({"sched": "plateau", "val_interval": 2}, "plateau needs an evaluation after every epoch"),
    ({"no_aug": True, "aa": "rand-m9"}, "no_aug: true cannot be combined with aa or reprob"),
    ({"model_ema_warmup": True}, "model_ema_warmup needs model_ema: true"),
    ({"extends": ["b"]}, "extends: one path of a recipe, got ['b']"),
    ({"extends": "b.yaml"}, "b.yaml: no such recipe"),
    ({"extends": "a.yaml"}, "a recipe cannot extend itself (a.yaml -> a.yaml)"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[next(iter(v)) for v, _ in WRONG])
def test_what_is_wrong_is_refused_by_name(write, values, message):
    path = write(**{**TINY, "data_dir": "x", **values})
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    text = str(error.value)
    assert message in text and "\n" not in text and str(path.parent) in text


def test_clips_are_not_flipped_unless_the_recipe_says_so(write):
    image = {**TINY, "data_dir": "x"}
    clip = {**image, "model": "performer_rpe3d_tiny_patch16_224", "num_frames": 4}
    assert load_recipe(write(**image)).hflip == load_recipe(write(**image, hflip=None)).hflip == 0.5
    assert load_recipe(write(**clip)).hflip == 0.0
    assert load_recipe(write(**clip, hflip=0.5)).hflip == 0.5
    assert load_recipe(ROOT / "recipes" / "kinetics400_performer_rpe3d_base.yaml").hflip == 0.5


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0.25), (3, 0.75), (5, 1.25), (6, 5), (300, 5)])
def test_the_default_warm_up_fits_a_short_run(tmp_path, epochs, warmup):
    values = {**TINY, "data_dir": "x", "epochs": epochs}
    del values["warmup_epochs"]
    recipe = check(values, {}, "a.yaml")
    assert recipe.warmup_epochs == warmup
    assert check({**values, "warmup_epochs": 0.0}, {}, "a.yaml").warmup_epochs == 0
    kept = check({**values, "warmup_prefix": True}, {}, "a.yaml")
    assert kept.warmup_epochs == 5, "the schedule begins after the rise: nothing to fit"


def test_null_takes_any_key_away(tmp_path):
    path = write_recipe(tmp_path / "a.yaml", data_dir="x", val_split="test")
    recipe = load_recipe(path, ["model_kwargs=null", "lr=null", "val_split=null", "epochs=null"])
    assert (recipe.model_kwargs, recipe.lr, recipe.epochs) == ({}, 1e-3, 300)
    assert recipe.val_split is None, "here null is a value"
    with pytest.raises(RecipeError, match="model: is required"):
        load_recipe(path, ["model=null"])


def test_a_batch_has_equal_parts_for_all_processes():
    recipe = check({**TINY, "data_dir": "x", "batch_size": 24, "grad_accum_steps": 3}, {}, "a.yaml")
    assert (recipe.per_rank(1), recipe.per_rank(4)) == (24, 6)
    with pytest.raises(ValueError, match="no equal parts for 3 processes x grad_accum_steps 3"):
        recipe.per_rank(3)
    mixed = recipe.model_copy(update={"mixup": 0.5})
    assert mixed.per_rank(4) == 6
    with pytest.raises(ValueError, match="even number of samples on every process"):
        mixed.per_rank(8)
