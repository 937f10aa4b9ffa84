"""Values of a recipe that have the right type and make no sense: one line, before anything runs."""

from __future__ import annotations

import pytest

from tests.training.runs import TINY
from vit_rpe.training import RecipeError
from vit_rpe.training.recipe.file import check

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


@pytest.mark.parametrize("name", ["../..", "..", "/abs", ".", "", "a/../../b"])
def test_an_experiment_stays_inside_output(name):
    with pytest.raises(RecipeError, match="experiment: a name"):
        check({**TINY, "data_dir": "x", "experiment": name}, {}, "a.yaml")
