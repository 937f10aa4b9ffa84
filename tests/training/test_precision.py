"""One answer to which precision a run has, in three vocabularies."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

from tests.training.runs import TINY
from vit_rpe.training.distributed import accelerator_for
from vit_rpe.training.precision import Precision, choose_kernels
from vit_rpe.training.recipe.file import check
from vit_rpe.training.recipe.on_resume import may_follow
from vit_rpe.training.recipe.schema import Recipe


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


@pytest.fixture
def kernels(monkeypatch) -> Iterator[None]:
    """Whatever a test allows or forbids is forgotten after it."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_recipe_chooses_the_kernels_of_its_run(tf32, deterministic, kernels, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    keys = {"tf32": tf32, "deterministic": deterministic}
    choose_kernels(check({**TINY, "data_dir": "x", **keys}, {}, "a.yaml"))
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    assert workspace == (":4096:8" if deterministic else None)


def test_a_run_with_deterministic_kernels_trains(kernels):
    """No operation of forward and backward passes is refused, as far as a CPU can tell."""
    keys = {"data_dir": "x", "deterministic": True, "tf32": True, "device": "cpu"}
    accelerator_for(check({**TINY, **keys}, {}, "a.yaml"))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"  # TF32 is for GPUs
    for rpe in ("offset", "distance", "exponential"):
        for path in ("explicit", "product"):
            model = timm.create_model(
                "performer_rpe2d_tiny_patch16_224", depth=1, img_size=48, rpe=rpe, path=path
            )
            model(torch.rand(2, 3, 48, 48)).square().mean().backward()


def test_neither_key_changes_when_a_run_is_resumed():
    fields = Recipe.model_fields
    for name in ("tf32", "deterministic"):
        assert not may_follow(fields[name], False, True)
