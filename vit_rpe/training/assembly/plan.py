"""The plan of attention in a run: rank 0 decides, the recipe records it, a resumed run keeps it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..distributed import broadcast
from ..recipe.schema import Recipe
from ..record.find import saved_recipe
from ..run import Run
from .model import build_model
from .shards import Inputs


def build_planned(run: Run, inputs: Inputs, resume: Path | None) -> tuple[nn.Module, Run]:
    """Build the model with the same attention path on every rank, and record it in the recipe."""
    if resume is not None:
        run = _with_path(run, saved_recipe(resume).model_kwargs.get("path"))
    net = _build(run.recipe, inputs)
    path = broadcast(run.accelerator, attention_path(net))
    run = _with_path(run, path)
    if path != attention_path(net):
        net = _build(run.recipe, inputs)
    return net, run


def attention_path(model: nn.Module) -> str | None:
    """Return the path that a model has settled for, if it is a model that has paths."""
    path = getattr(model, "path", None)
    return path if isinstance(path, str) else None


def _build(recipe: Recipe, inputs: Inputs) -> nn.Module:
    torch.manual_seed(recipe.seed)
    return build_model(recipe, inputs.num_classes, inputs.train.classes)


def _with_path(run: Run, path: str | None) -> Run:
    if path is None:
        return run
    kwargs = {**run.recipe.model_kwargs, "path": path}
    return run.with_recipe(run.recipe.model_copy(update={"model_kwargs": kwargs}))
