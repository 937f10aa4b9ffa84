"""The tables of keys, which docs/recipes.md holds."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import vit_rpe  # noqa: F401  registers the models
from vit_rpe.training.recipe.schema import Recipe
from vit_rpe.training.recipe.table import GROUPS, table

ROOT = Path(__file__).parents[3]


def test_every_key_is_explained_once_and_the_page_is_up_to_date():
    assert all(field.description for field in Recipe.model_fields.values())
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert page.endswith(f"\n\n{table()}\n"), (
        "vit-rpe train --help-recipe prints what belongs there"
    )


def test_the_groups_are_those_of_the_schema():
    """Its source has a comment before each of them."""
    found = re.findall(r"^    # --- ([\w ,]+)\n    (\w+):", inspect.getsource(Recipe), re.MULTILINE)
    assert {key: title.lower() for key, title in GROUPS.items()} == {k: t for t, k in found}
    assert [key for key in Recipe.model_fields if key in GROUPS] == list(GROUPS)
