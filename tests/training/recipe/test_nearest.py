"""The names of other trainers lead to ours."""

from __future__ import annotations

import pytest

from tests.training.runs import TINY
from vit_rpe.training import RecipeError
from vit_rpe.training.recipe.file import check
from vit_rpe.training.recipe.nearest import ALIASES, nearest
from vit_rpe.training.recipe.schema import Recipe


@pytest.mark.parametrize("key", ["learning_rate", "num_workers", "image_size", "output-dir", "wd"])
def test_names_of_other_trainers_lead_to_ours(key):
    meant = {"learning_rate": "lr", "num_workers": "workers", "image_size": "img_size"}
    meant |= {"output-dir": "output", "wd": "weight_decay"}
    with pytest.raises(RecipeError, match=f"no key '{key}'; nearest is '{meant[key]}'"):
        check({**TINY, "data_dir": "x", key: 1}, {}, "a.yaml")


def test_every_alias_leads_to_a_key_and_hides_none():
    assert set(ALIASES) <= set(Recipe.model_fields)
    aliases = [alias for names in ALIASES.values() for alias in names]
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(Recipe.model_fields)
    assert nearest("learning_rate", ["vit_tiny"]) == ""
