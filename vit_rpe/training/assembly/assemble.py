"""Everything that a run needs, put together and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from vit_rpe.files import atomic_write

from ..distributed import on_main, warn
from ..loop.task import Task, Teacher
from ..loop.trainer import Trainer
from ..recipe.file import as_yaml
from ..recipe.schema import Recipe
from ..record.find import RECIPE, saved_recipe
from ..run import Run
from .loaders import training_loader, validation_loader
from .model import build_teacher, model_arguments, unseen_pixels
from .plan import build_planned
from .resume import check_same
from .shards import Inputs, open_inputs


def assemble(run: Run, resume: Path | None = None, began: Recipe | None = None) -> Trainer:
    """Make the trainer of a run; its folder then holds the recipe as it was settled.

    `began` is the recipe of the run that wrote the checkpoint `resume`, if it is not the one that
    stands in that run's folder.
    """
    inputs = open_inputs(run)
    began = None if resume is None else began or saved_recipe(resume)
    net, run = build_planned(run, inputs, began)
    recipe = run.recipe
    if began is not None:
        check_same(recipe, began)
    config: dict[str, Any] = net.pretrained_cfg  # pyright: ignore
    if unseen := unseen_pixels(net, config["input_size"][-1]):
        warn(unseen)
    loader = training_loader(run, inputs, config)
    trainer = Trainer(
        run,
        net,
        Task(recipe, inputs.num_classes, _teacher(run, inputs, net)),
        loader,
        validation_loader(run, inputs, config),
        model_args=model_arguments(recipe),
        resume=resume,
    )
    on_main(run.accelerator, lambda: _write_recipe(run))
    return trainer


def _teacher(run: Run, inputs: Inputs, student: nn.Module) -> Teacher | None:
    if run.recipe.kd_model_name is None:
        return None
    model = build_teacher(run.recipe, inputs.num_classes)
    return Teacher(run.recipe, model, student, run.device)


def _write_recipe(run: Run) -> None:
    with atomic_write(run.folder / RECIPE) as file:
        file.write(as_yaml(run.recipe).encode())
