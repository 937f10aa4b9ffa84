"""One answer to which precision a run has, in three vocabularies."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.runs import TINY
from vit_rpe.training.precision import Precision
from vit_rpe.training.recipe.file import check


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"amp": False}, Precision.FLOAT32),
        ({"amp": True}, Precision.BFLOAT16),
        ({"amp": True, "amp_dtype": "float16"}, Precision.FLOAT16),
    ],
)
def test_what_a_recipe_asks_for_is_what_it_records(keys, expected):
    recipe = check({**TINY, "data_dir": "x", **keys}, {}, "a.yaml")
    assert Precision.requested(recipe) is expected
    if expected is not None:
        accelerator: Any = SimpleNamespace(mixed_precision=expected.accelerate_name)
        assert Precision.settled(accelerator) is expected
        again = recipe.model_copy(update=expected.keys)
        assert Precision.requested(again) is expected


def test_names_and_dtypes():
    names = [(each.accelerate_name, each.dtype, str(each)) for each in Precision]
    assert names == [
        ("no", torch.float32, "float32"),
        ("bf16", torch.bfloat16, "mixed precision bf16"),
        ("fp16", torch.float16, "mixed precision fp16"),
    ]
