"""The attention path of a run: planned for its own device and batch, recorded, and kept."""

import pytest
import torch

from tests.training.runs import make_data, write_recipe
from vit_rpe.models import PerformerViT
from vit_rpe.training import load_recipe, start_run
from vit_rpe.training.assembly.plan import build_planned
from vit_rpe.training.assembly.shards import open_inputs
from vit_rpe.training.run import Run

MODEL = "performer_rpe2d_tiny_patch16_224"
KWARGS = {"depth": 1, "rpe": "exponential"}


@pytest.fixture
def run(tmp_path) -> Run:
    data = make_data(tmp_path / "data")
    options = {"model": MODEL, "model_kwargs": KWARGS, "img_size": 800, "device": "cpu"}
    file = write_recipe(tmp_path / "a.yaml", data_dir=data, output=str(tmp_path), **options)
    return start_run(load_recipe(file))


def test_a_run_on_a_gpu_is_planned_for_it(run, monkeypatch):
    """The model is built on a CPU, where it would be scanned, and moved afterwards."""
    inputs = open_inputs(run)
    net, planned = build_planned(run, inputs, None)
    assert net.path == planned.recipe.model_kwargs["path"] == "scan"
    monkeypatch.setattr(Run, "device", torch.device("cuda"))
    net, planned = build_planned(run, inputs, None)
    assert net.path == planned.recipe.model_kwargs["path"] == "explicit"
    assert {p.device.type for p in net.parameters()} == {"cpu"}


def test_the_batch_of_a_forward_pass_counts(run, monkeypatch):
    seen = []
    inputs = open_inputs(run)
    run = run.with_recipe(run.recipe.model_copy(update={"grad_accum_steps": 2}))
    real = PerformerViT.attention_plan
    monkeypatch.setattr(
        PerformerViT, "attention_plan", lambda self, *x: seen.append(x) or real(self, *x)
    )
    build_planned(run, inputs, None)
    assert (run.per_rank // 2, torch.device("cpu")) in seen


def test_the_first_process_decides(run, monkeypatch):
    monkeypatch.setattr("vit_rpe.training.assembly.plan.broadcast", lambda *_: "product")
    net, planned = build_planned(run, open_inputs(run), None)
    assert net.path == planned.recipe.model_kwargs["path"] == "product"


def test_models_without_paths_are_left_as_they_are(run):
    recipe = run.recipe.model_copy(
        update={"model": "vit_tiny_patch16_224", "model_kwargs": {"depth": 1}, "img_size": 32}
    )
    _, planned = build_planned(run.with_recipe(recipe), open_inputs(run), None)
    assert "path" not in planned.recipe.model_kwargs
