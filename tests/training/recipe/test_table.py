"""The table of keys, which docs/recipes.md holds."""

from __future__ import annotations

from pathlib import Path

import vit_rpe  # noqa: F401  registers the models
from vit_rpe.training.recipe.schema import Recipe
from vit_rpe.training.recipe.table import table

ROOT = Path(__file__).parents[3]


def test_every_key_is_explained_once_and_the_page_is_up_to_date():
    assert all(field.description for field in Recipe.model_fields.values())
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert table() in page, "python train.py --help-recipe prints the table for docs/recipes.md"
