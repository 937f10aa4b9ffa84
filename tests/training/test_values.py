"""Values of a recipe that have the right type and make no sense: one line, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.launch import train
from tests.training.runs import TINY, make_data, write_recipe
from vit_rpe.training import RecipeError
from vit_rpe.training.recipe.file import check, load_recipe

WRONG = [
    ({"seed": 2**64}, "seed: input should be less than"),
    ({"epochs": 10**20}, "epochs: input should be less than or equal to 1000000"),
    ({"opt_betas": [0.1]}, "opt_betas: list should have at least 2 items"),
    ({"opt_betas": [0.9, 1.0]}, "opt_betas: input should be less than 1"),
    ({"lr_noise": []}, "lr_noise: list should have at least 1 item"),
    ({"lr_noise": [0.9, 0.1]}, "lr_noise goes from low to high, got [0.9, 0.1]"),
    ({"decay_epochs": 0}, "decay_epochs: input should be greater than 0"),
    ({"lr_cycle_mul": 0}, "lr_cycle_mul: input should be greater than 0"),
    ({"clip_grad": float("inf")}, "clip_grad: input should be a finite number"),
    ({"layer_decay": 2.0}, "layer_decay: input should be less than or equal to 1"),
    ({"torchcompile": "x"}, "torchcompile: torch.compile has no backend 'x'; there are "),
    ({"workers": 5000}, "workers: input should be less than or equal to 512"),
    ({"img_size": 10**6}, "img_size: input should be less than or equal to 16384"),
    ({"crop_pct": 1e-9}, "crop_pct: input should be greater than or equal to 0.1"),
    ({"crop_pct": float("inf")}, "crop_pct: input should be less than or equal to 2"),
    ({"std": [0.0, 1.0, 1.0]}, "std: input should be greater than 0"),
    ({"recount": 10**9}, "recount: input should be less than or equal to 100"),
    ({"aa": "rand-xyz"}, "aa: no policy 'rand-xyz'; there are rand-m9"),
    ({"aa": "rand-foo"}, "aa: no policy 'rand-foo'"),
    ({"aa": "rand-m9-mstdXX"}, "aa: no policy 'rand-m9-mstdXX'"),
    ({"aa": "rand-n1000000"}, "aa: rand-n1000000: at most 32 operations on an image"),
    ({"model_kwargs": {"embed_dim": 0}}, "model_kwargs: embed_dim is a whole number from 1 to"),
    ({"model_kwargs": {"num_heads": 0}}, "model_kwargs: num_heads is a whole number from 1 to"),
    ({"model_kwargs": {"patch_size": [8, 0]}}, "patch_size is a whole number from 1 to 4096"),
    ({"model_kwargs": {"depth": 10**7}}, "model_kwargs: depth is a whole number from 1 to 1024"),
    ({"model_kwargs": {"depth": 1e7}}, "model_kwargs: depth is a whole number from 1 to 1024"),
    ({"model_kwargs": {"num_classes": 5}}, "num_classes is a key of the recipe"),
    ({"model_kwargs": {"checkpoint_path": "x.pth"}}, "is initial_checkpoint in a recipe"),
    ({"model_kwargs": {"in_chans": 1}}, "in_chans is 3, because images are read as RGB, got 1"),
    ({"kd_model_kwargs": {"in_chans": 1}}, "kd_model_kwargs: in_chans is 3"),
]


def names(case: tuple[dict, str]) -> str:
    return "-".join(f"{key}={value}"[:24] for key, value in case[0].items())


@pytest.mark.parametrize("case", WRONG, ids=names)
def test_a_value_without_sense_is_refused_in_one_line(case):
    values, message = case
    with pytest.raises(RecipeError) as error:
        check({**TINY, "data_dir": "x", **values}, {}, "a.yaml")
    text = str(error.value)
    assert message in text and "\n" not in text and len(text) < 300


@pytest.mark.parametrize(
    "policy",
    ["rand-m9-mstd0.5-inc1", "rand-m9-n3-p0.5-mmax10-tweights", "original-mstd0.5", "3a", "v0r"]
    + ["augmix-m5-w4-d2", "trivial", "rand"],
)
def test_policies_of_timm_are_taken(policy):
    assert check({**TINY, "data_dir": "x", "aa": policy}, {}, "a.yaml").aa == policy


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("values")
    write_recipe(folder / "a.yaml", data_dir=make_data(folder / "data"), output=str(folder))
    return folder


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["opt=adan", "opt_betas=[0.9,0.99]"], "opt_betas: adan has 3, got 2"),
        (["lr_cycle_mul=0.5", "cooldown_epochs=9"], "sched: cosine has no learning rate: "),
        (["lr_k_decay=1e300"], "sched: cosine has no learning rate: "),
        (["model_kwargs.num_heads=3"], "cannot be built with model_kwargs"),
        (["model=local-dir:nowhere"], "local-dir:nowhere is no model that timm can load"),
        (["model_kwargs.mlp_ratio=x"], "cannot be built with model_kwargs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_only_the_parts_know_is_refused_in_one_line(place, overrides, message):
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides)
    assert code == 2 and message in shown, shown
    assert shown.count("\n") == 1 and "Traceback" not in shown


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
