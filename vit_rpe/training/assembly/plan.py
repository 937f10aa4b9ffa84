"""The plan of attention in a run: rank 0 decides, the recipe records it, a resumed run keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..distributed import broadcast
from ..recipe.schema import Recipe
from ..run import Run
from .model import build_model
from .shards import Inputs


def build_planned(run: Run, inputs: Inputs, began: Recipe | None) -> tuple[nn.Module, Run]:
    """Build the model with the same attention path on every rank, and record it in the recipe.

    The path is that of the recipe `began` of a run that is resumed, else it is chosen for the
    device and the batch that the model will have, wherever it is built.
    """
    if began is not None:
        run = _with_path(run, began.model_kwargs.get("path"))
    torch.manual_seed(run.recipe.seed)
    net: Any = build_model(run.recipe, inputs.num_classes, inputs.train.classes)
    if attention_path(net) is None:
        return net, run
    piece = run.per_rank // run.recipe.grad_accum_steps
    plan = net.attention_plan(piece, run.device)
    words = f"{plan.path} path, {plan.form}: {plan.reason}"
    net.path = broadcast(run.accelerator, plan.path)  # the words are for the main process only
    run = replace(run, provenance={**run.provenance, "plan": words})
    return net, _with_path(run, net.path)


def attention_path(model: nn.Module) -> str | None:
    """Return the path of a model's attention layers, if it is a model that has paths."""
    path = getattr(model, "path", None)
    return path if isinstance(path, str) else None


def _with_path(run: Run, path: str | None) -> Run:
    if path is None:
        return run
    kwargs = {**run.recipe.model_kwargs, "path": path}
    return run.with_recipe(run.recipe.model_copy(update={"model_kwargs": kwargs}))
