"""Every recipe that is shipped: its header, its keys, its model, its launch configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

import vit_rpe  # noqa: F401  registers the models
from vit_rpe.training import load_recipe
from vit_rpe.training.assembly.loaders import training_transform
from vit_rpe.training.assembly.model import build_model
from vit_rpe.training.loop.optim import Schedule
from vit_rpe.training.loop.task import Task
from vit_rpe.training.run import modality_for

FOLDER = Path(__file__).parents[3] / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
HEADER = ("paper", "command", "cost", "expected", "measured")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_whole(path):
    header = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    for word in HEADER:
        assert any(line.startswith(f"{word} ") for line in header), f"no {word} in the header"
    assert any(f"--recipe {path.stem}" in line for line in header)
    recipe = load_recipe(path)
    with torch.device("meta"):
        model = build_model(recipe, recipe.num_classes or 10)
    assert sum(p.numel() for p in model.parameters()) > 1e5
    assert model.pretrained_cfg["input_size"][-1] == recipe.img_size
    training_transform(recipe, modality_for(recipe), model.pretrained_cfg)
    Task(recipe, recipe.num_classes or 10)


def test_those_of_imagenet_train_what_they_say():
    one = load_recipe(FOLDER / "imagenet1k_performer_rpe2d_base_90ep.yaml")
    assert one.epochs + one.warmup_epochs == 90 and one.batch_size == 4096
    for name in ("imagenet1k_performer_base_90ep", "imagenet1k_vit_base_90ep"):
        other = load_recipe(FOLDER / f"{name}.yaml")
        same = {"model": one.model, "experiment": one.experiment}
        assert other.model_copy(update=same) == one and other.model != one.model


def schedule(path: Path, steps: int) -> tuple[Schedule, torch.optim.Optimizer]:
    recipe = load_recipe(path)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    return Schedule(recipe, optimizer, steps), optimizer


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_a_learning_rate_at_every_epoch(path):
    recipe, (made, _) = load_recipe(path), schedule(path, 10)
    before = int(recipe.warmup_epochs) if recipe.warmup_prefix else 0
    assert isinstance(made.epochs, int) and made.epochs == recipe.epochs + before


def test_the_schedule_of_90_epochs():
    """Up to 3e-3 within 10,000 steps, then in a straight line down to 1e-5."""
    made, optimizer = schedule(FOLDER / "imagenet1k_performer_rpe2d_base_90ep.yaml", 312)
    rates = {0: 0.0, 4992: 1.5e-3, 9984: 3e-3, 19032: (3e-3 + 1e-5) / 2, 28080: 1e-5}
    for step, rate in rates.items():
        made.at(step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, abs=1e-6), step


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "accelerate").glob("*.yaml")), ids=lambda p: p.stem
)
def test_accelerate_reads_its_configs(path):
    config = load_config_from_file(str(path))
    assert config.num_processes == {
        "8_gpus": 8,
        "kinetics400_8_gpus": 8,
        "2_nodes_x_8_gpus": 16,
        "fsdp": 8,
        "cpu_x2": 2,
    }.get(path.stem, 1)
    assert config.use_cpu == (path.stem == "cpu_x2")
