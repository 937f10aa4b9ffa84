"""The words of a run before it trains, in aligned entries; so does a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_rpe.messages import counted, entry

from ..loop.trainer import Trainer
from ..recipe.schema import Recipe
from ..run import Run
from .model import loaded_weights
from .shards import Inputs


def introduction(run: Run, trainer: Trainer, resume: Path | None) -> str:
    """Say everything, once a run has passed all checks: what is wrong is told in one line."""
    recipe, net = trainer.recipe, trainer.learner.net
    val = None if trainer.val_loader is None else trainer.val_loader.shards
    inputs = Inputs(trainer.loader.shards, val, trainer.task.num_classes)
    parts = [
        about_run(run, resume),
        about_machine(run),
        about_data(recipe, inputs),
        about_model(recipe, net),
        about_attention(net, run.per_rank // recipe.grad_accum_steps, run.device),
        *([about_weights(recipe, net)] if resume is None else []),
        about_length(run, trainer),
    ]
    if recipe.torchcompile and trainer.state.step < trainer.total_steps:
        what = f"the first step compiles ({recipe.torchcompile}): up to some minutes"
        parts.append(entry("compile", what))
    return "\n".join(parts)


def about_run(run: Run, resume: Path | None) -> str:
    """Say where the run is kept, and which checkpoint it takes up."""
    if resume is None:
        return entry("run", f"{run.folder}, new")
    found = resume.name if resume.parent.name == "checkpoints" else resume
    return entry("run", f"{run.folder}, resumed from {found}")


def about_machine(run: Run) -> str:
    """Say on what the run computes."""
    device = run.device.type
    if device == "cuda":
        device += f" ({torch.cuda.get_device_name(run.device)})"
    each = "each with " if run.world_size > 1 else ""
    threads = counted(torch.get_num_threads(), "thread")
    workers = f"{counted(run.recipe.workers, 'worker')} for data"
    processes = f"{_processes(run.world_size)} on {device}"
    return entry("machine", f"{processes}, {each}{threads}, {workers}, {run.precision}")


def about_data(recipe: Recipe, inputs: Inputs) -> str:
    """Say what is trained on and what is evaluated."""
    parts = [f"{inputs.train.num_samples:,} samples of {recipe.train_split}"]
    if inputs.val is None:
        parts.append("no evaluation")
    elif recipe.val_fraction:
        parts.append(f"{inputs.val.num_samples:,} more held out to evaluate (val_fraction)")
    else:
        parts.append(f"{inputs.val.num_samples:,} of {recipe.val_split}")
    return entry("data", f"{recipe.data_dir}: {', '.join(parts)}; {_classes(inputs)}")


def about_model(recipe: Recipe, net: Any) -> str:
    """Say which model is trained, and on what its attention runs."""
    *_, height, width = net.pretrained_cfg["input_size"]
    pixels = f"{height} x {width}"
    frames = "" if recipe.num_frames is None else f"{recipe.num_frames} frames of "
    what = f"{recipe.model}, {count_parameters(net):,} parameters, {frames}{pixels} pixels"
    return entry("model", what)


def about_attention(net: Any, batch_size: int, device: torch.device) -> str:
    """Say how attention is computed, as the model says it."""
    if not hasattr(net, "describe_attention"):
        return entry("attention", "as the model does it: it is not one of vit_rpe's")
    return entry("attention", net.describe_attention(batch_size, device))


def about_weights(recipe: Recipe, net: nn.Module) -> str:
    """Say where the weights come from that the first step finds."""
    if recipe.initial_checkpoint is not None:
        return entry("weights", *loaded_weights(recipe, net))
    if recipe.pretrained:
        return entry("weights", "timm's published ones")
    return entry("weights", f"random, seed {recipe.seed}")


def about_length(run: Run, trainer: Trainer) -> str:
    """Say how long the run is, and how much of it is done."""
    epochs, steps = counted(trainer.epochs, "epoch"), counted(trainer.steps_per_epoch, "step")
    text = f"{epochs} of {steps} of {about_batch(run)}"
    if done := trainer.state.step:
        text += f"; step {done:,} of {trainer.total_steps:,} is done"
    return entry("training", text)


def about_batch(run: Run) -> str:
    """Say how many samples a step has, and how they are divided."""
    size, pieces = run.recipe.batch_size, run.recipe.grad_accum_steps
    if run.world_size * pieces == 1:
        return f"{size} samples"
    parts = [_processes(run.world_size), *([counted(pieces, "piece")] if pieces > 1 else [])]
    return f"{size} samples ({' x '.join(parts)} x {run.per_rank // pieces})"


def count_parameters(net: nn.Module) -> int:
    """Return the number of a model's parameters."""
    return sum(parameter.numel() for parameter in net.parameters())


def _classes(inputs: Inputs) -> str:
    named, classes = len(inputs.train.classes), f"{inputs.num_classes:,} classes"
    if named and named < inputs.num_classes:
        return f"{classes} (num_classes), of which the shards name {named}"
    return classes


def _processes(number: int) -> str:
    return f"{number} process{'' if number == 1 else 'es'}"
