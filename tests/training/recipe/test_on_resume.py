"""Keys say in their type whether they may change when a run is resumed."""

import pytest

from tests.training.runs import TINY
from vit_rpe.training import RecipeError
from vit_rpe.training.assembly.resume import check_same
from vit_rpe.training.recipe.file import check
from vit_rpe.training.recipe.on_resume import OnResume, may_follow
from vit_rpe.training.recipe.schema import Recipe


@pytest.mark.parametrize(
    ("name", "before", "now", "allowed"),
    [
        ("workers", 4, 0, True),
        ("data_dir", "a", "b", True),
        ("torchcompile", None, "inductor", True),
        ("lr", 0.1, 0.2, False),
        ("lr", 0.1, 0.1, True),
        ("num_frames", None, 4, False),
        ("epochs", 3, 5, True),
        ("epochs", 5, 3, False),
    ],
)
def test_what_may_follow(name, before, now, allowed):
    assert may_follow(Recipe.model_fields[name], before, now) is allowed


def test_what_changes_results_is_not_marked():
    marked = {n for n, field in Recipe.model_fields.items() if OnResume.ANY in field.metadata}
    assert len(marked) == 26
    assert not marked & {"model", "model_kwargs", "batch_size", "seed", "lr", "opt", "amp", "aa"}


def test_a_key_that_may_not_change_is_named():
    saved = check({**TINY, "data_dir": "x"}, {}, "a.yaml")
    check_same(saved.model_copy(update={"workers": 3, "epochs": 9, "data_dir": "y"}), saved)
    with pytest.raises(
        RecipeError, match="seed: the run began with 3, now it is 4; a run continues"
    ):
        check_same(saved.model_copy(update={"seed": 4}), saved)
