"""Every shipped study has trials, recipes, models and comparisons that hold."""

from __future__ import annotations

import pytest
import torch

from vit_rpe.experiments import load_study, plan_study
from vit_rpe.shipped import shipped
from vit_rpe.training import build_model


@pytest.mark.parametrize("name", shipped("study"))
def test_every_setting_makes_a_model(name, tmp_path):
    planned = plan_study(load_study(name), tmp_path / "x.jsonl", tmp_path)
    recipes = {trial.setting: planned.recipes[trial] for trial in planned.trials}
    sizes = {}
    with torch.device("meta"):
        for setting, recipe in recipes.items():
            model = build_model(recipe, 10)
            sizes[setting] = sum(parameter.numel() for parameter in model.parameters())
    assert max(sizes.values()) < 1.04 * min(sizes.values()), "equal, but for tables and positions"
