"""Bad studies are refused before anything runs, in one line that names what is wrong."""

from __future__ import annotations

import pytest

from tests.experiments.study.studies import SMALL, plan, write
from vit_rpe.experiments import StudyError, load_study

FACTORS = SMALL["factors"]
GAIN = {"name": "gain", "this": {"mask": "offset"}, "minus": {"mask": "none"}}


def test_the_trials_are_all_combinations(tmp_path):
    names = [trial.name for trial in plan(tmp_path).trials]
    settings = ["relu-none", "relu-offset", "square-none", "square-offset"]
    assert names == [f"{setting}-seed{seed}" for seed in (0, 1) for setting in settings]


def test_a_trial_is_its_recipe(tmp_path):
    planned = plan(tmp_path)
    recipes = {trial.name: planned.recipes[trial] for trial in planned.trials}
    one = recipes["square-none-seed1"]
    assert (one.seed, one.epochs, one.val_split, one.resume) == (1, 1, "val", "auto")
    kwargs = one.model_kwargs
    assert (kwargs["feature_map"], kwargs["rpe"], kwargs["depth"]) == ("square", "none", 1)
    assert kwargs["patch_size"] == 2, "of the base"
    assert "rpe" not in recipes["relu-offset-seed0"].model_kwargs


def test_blocks_with_their_own_seeds_and_holes(tmp_path):
    blocks = [
        {"levels": {"kernel": "square"}, "seeds": [5]},  # the mask is at its first level
        {
            "levels": {"kernel": ["relu", "square"], "mask": ["none", "offset"]},
            "leave_out": [{"kernel": "square", "mask": "none"}, {"kernel": "relu"}],
            "seeds": [7],
        },
    ]
    planned = plan(tmp_path, blocks=blocks, comparisons=[])
    assert [trial.name for trial in planned.trials] == ["square-none-seed5", "square-offset-seed7"]


def test_a_part_of_the_training_split(tmp_path):
    planned = plan(tmp_path, split="train", val_fraction=0.25)
    recipe = next(iter(planned.recipes.values()))
    assert (recipe.train_split, recipe.val_fraction) == ("train", 0.25)


def test_levels_may_be_numbers(tmp_path):
    factors = {**FACTORS, "kernel": {1: None, 2.5: {"lr": 1e-5}}}
    blocks = [{"levels": {"kernel": [1, 2.5], "mask": "offset"}}]
    comparisons = [{"name": "x", "this": {"kernel": 1}, "minus": {"kernel": 2.5}}]
    planned = plan(tmp_path, factors=factors, blocks=blocks, comparisons=comparisons)
    assert [trial.setting for trial in planned.trials[:2]] == ["1-offset", "2.5-offset"]
    assert planned.recipes[planned.trials[1]].lr == 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "quickstrat"}, "no such recipe; nearest is 'quickstart'"),
        ({"seeds": [0, 1, 0]}, "seeds: 0 is there twice"),
        ({"seeds": []}, "seeds: list should have at least 1 item"),
        ({"seeds": [-1]}, "seeds.0: .*greater than or equal to 0"),
        ({"sead": 1}, "sead: no such key; nearest is 'seeds'"),
        ({"overrides": {"seed": 3}}, "seed belongs to the study as a whole"),
        ({"overrides": {"lrr": 3}}, "trial relu-none-seed0: no key 'lrr'"),
        ({"overrides": {"epochs": 0}}, "trial relu-none-seed0: epochs: .*greater than"),
        ({"split": "train"}, "split: train is trained on"),
        ({"metric": "top1"}, "metric: .*'eval_top1'"),
        ({"blocks": [{"levels": {"kernl": ["relu"]}}]}, "no factor 'kernl'; nearest is 'kernel'"),
        ({"blocks": [{"levels": {"kernel": ["rleu"]}}]}, "kernel has no level 'rleu'; nearest is"),
        ({"blocks": [{"levels": {"kernel": ["relu", "relu"]}}]}, "'relu' is there twice"),
        ({"blocks": SMALL["blocks"] * 2}, "the trial relu-none-seed0 is there twice"),
        (
            {"blocks": [{"levels": {}, "leave_out": [{"kernel": "relu"}]}]},
            "a block leaves out all of its trials",
        ),
        (
            {"factors": {**FACTORS, "mask": {"none": None, "offset": None}}},
            "relu-none-seed0 and relu-offset-seed0 are the same run",
        ),
        (
            {"factors": {**FACTORS, "mask": {"none": {"model_kwargs.feature_map": "elu"}}}},
            "block 1: mask has no level 'offset'",
        ),
        (
            {
                "factors": {
                    "kernel": {"relu": {"lr": 1e-3}},
                    "mask": {"none": {"lr": 2e-3}, "offset": {}},
                },
                "blocks": [{"levels": {"mask": ["none", "offset"]}}],
            },
            "lr is set by kernel and by mask",
        ),
        ({"factors": {**FACTORS, "mask": {True: {}}}}, "put quotes around such a name"),
        ({"factors": {**FACTORS, "mask": {"a-b": {}}}}, "letters, digits and _ . . only"),
        ({"comparisons": [{**GAIN, "this": {"mask": "offst"}}]}, "mask has no level 'offst'"),
        ({"comparisons": [{**GAIN, "by": ["mask"]}]}, "mask is compared, so it cannot be in"),
        ({"comparisons": [{**GAIN, "this": {"kernel": "relu"}}]}, "name the same factors"),
        ({"comparisons": [{**GAIN, "this": {"mask": "none"}}]}, "this and minus are the same"),
        ({"comparisons": [GAIN, GAIN]}, "'gain' is there twice"),
        (
            {"comparisons": [GAIN], "blocks": [{"levels": {"mask": "offset"}}]},
            "comparison 'gain': no two trials of the study",
        ),
        (
            {
                "comparisons": [GAIN],
                "blocks": [
                    {"levels": {"mask": "offset"}, "seeds": [0]},
                    {"levels": {"mask": "none"}, "seeds": [1]},
                ],
            },
            "comparison 'gain': no two trials of the study that share a seed",
        ),
        ({"recipe": None}, "recipe: .*string"),
        ({"path": "x"}, "path: no such key"),
    ],
)
def test_bad_studies_are_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(StudyError, match=message) as found:
        plan(tmp_path, **changes)
    assert "\n" not in str(found.value)
    assert "small.yaml" in str(found.value) or "quickstrat" in str(found.value)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "small.jsonl").exists()


def test_a_comparison_within_one_level_sees_no_other(tmp_path):
    blocks = [{"levels": {"kernel": "relu", "mask": ["none", "offset"]}}]
    comparisons = [{**GAIN, "where": {"kernel": "square"}}]
    with pytest.raises(StudyError, match="no two trials of the study"):
        plan(tmp_path, blocks=blocks, comparisons=comparisons)


def test_overrides_leave_what_the_study_sets(tmp_path):
    with pytest.raises(StudyError, match="'seed=3': seed is set by the study"):
        plan(tmp_path, "seed=3")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_files_that_are_no_study(tmp_path, text):
    path = write(tmp_path)
    path.write_text(text)
    with pytest.raises(StudyError, match="small.yaml"):
        load_study(path)


def test_a_wrong_name_lists_the_nearest():
    with pytest.raises(StudyError, match="no such study; nearest is 'cifar10_masks'"):
        load_study("cifar10_mask")
