"""Two small runs, made once: with an average, and of a softmax model."""

import os

import pytest

from tests.report.subjects import EVIL
from tests.training.launch import train
from tests.training.runs import RICH, make_named, write_recipe


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The folders of two runs, and of their data, whose classes have names that are markup."""
    folder = tmp_path_factory.mktemp("runs")
    before = os.environ.get("VIT_RPE_CACHE")
    os.environ["VIT_RPE_CACHE"] = str(folder / "cache")
    values = {"data_dir": make_named(folder / "data", EVIL), "output": str(folder), "epochs": 2}
    values |= {"num_classes": None}
    recipe = write_recipe(folder / "first.yaml", **{**RICH, **values})
    changes = ["model=vit_rpe2d_tiny_patch16_224", "model_kwargs.class_token=true"]
    changes += ["model_kwargs.global_pool=token", "model_kwargs.border=learned", "aa=null"]
    for name, more in (("first", []), ("second", changes)):
        code, shown = train("--recipe", recipe, f"experiment={name}", *more)
        assert code == 0, shown
    yield folder
    del os.environ["VIT_RPE_CACHE"]
    if before is not None:
        os.environ["VIT_RPE_CACHE"] = before
