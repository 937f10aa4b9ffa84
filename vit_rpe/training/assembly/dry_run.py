"""`--dry-run`: everything that a run does, with one small batch, and what the run would need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit_rpe.data.making import Arrays, Clips, VideoPreparation, make_shards
from vit_rpe.messages import counted, entry

from ..distributed import accelerator_for, broadcast, main_first
from ..errors import RecipeError
from ..evaluation import predict
from ..loop.trainer import Trainer
from ..recipe.file import as_yaml
from ..recipe.schema import Recipe
from ..record.meter import BACKWARD
from ..run import Run, make_run
from .assemble import assemble
from .introduction import (
    about_attention,
    about_batch,
    about_data,
    about_machine,
    about_model,
    about_weights,
)
from .shards import open_inputs

SAMPLES = 2  # of a piece of a batch: enough to mix


def dry_run(recipe: Recipe) -> None:
    """Check a recipe: build everything, then try a step, an evaluation and a checkpoint."""
    accelerator = accelerator_for(recipe)
    say = print if accelerator.is_main_process else _nothing
    say(as_yaml(recipe))
    with tempfile.TemporaryDirectory(prefix="vit_rpe-dry-run-") as folder:
        run = make_run(recipe, accelerator, Path(broadcast(accelerator, folder)))
        piece = run.per_rank // recipe.grad_accum_steps
        say(about_machine(run))
        trainer = assemble(_small(_with_data(run, say)))
        net, flops = trainer.learner.net, trainer.meter.flops
        say(entry("batch", about_batch(run)))
        say(about_model(recipe, net))
        say(about_attention(net, piece, run.device))
        say(about_weights(recipe, net))
        sample = _with_article(run.modality.sample)
        of_sample = f"{_giga(flops)} G for {sample}, {_giga(flops, BACKWARD)} G in training"
        say(entry("FLOPs", of_sample))
        say(_memory(trainer, _step(trainer), piece))
        say("a step, an evaluation and a checkpoint: passed")


def _small(run: Run) -> Run:
    """Return a run with the smallest batches that have all the parts of the real ones."""
    batch = SAMPLES * run.world_size * run.recipe.grad_accum_steps
    changes = {"batch_size": batch, "validation_batch_size": SAMPLES}
    changes.update(workers=0, log_wandb=False)
    return run.with_recipe(run.recipe.model_copy(update=changes))


def _with_data(run: Run, say: Any) -> Run:
    """Return the run with the data that it names, or with random samples if there are none."""
    recipe = run.recipe
    try:
        inputs = open_inputs(run)
    except RecipeError as error:
        say(entry("data", f"{error}: random {run.modality.sample}s stand in"))
        return main_first(run.accelerator, lambda: _with_random_samples(run))
    say(about_data(recipe, inputs))
    steps = inputs.train.num_samples * recipe.aug_repeats // recipe.batch_size
    say(entry("epoch", counted(steps, "step")))
    return run


def _step(trainer: Trainer) -> int:
    """Make a step, an evaluation and a checkpoint; return the bytes that a piece keeps."""
    batch = next(iter(trainer.loader.batches(0, 1)))
    saved = saved_bytes(lambda: trainer.train_step(batch), trainer.learner.parameters)
    if trainer.val_loader is not None:
        first = islice(trainer.val_loader.epoch(0), 1)
        predict(trainer.learner.net, first, trainer.accelerator)
    trainer.save("dry-run")
    return saved // trainer.recipe.grad_accum_steps


def _memory(trainer: Trainer, saved: int, piece: int) -> str:
    """Say what weights, gradients, optimizer and average need, and activations in proportion."""
    learner = trainer.learner
    weights = _bytes(learner.net.parameters())
    state = [v for s in learner.optimizer.state.values() for v in s.values()]
    state = _bytes(v for v in state if isinstance(v, Tensor))
    average = weights if learner.ema is not None else 0
    activations = saved * piece // SAMPLES
    parts = {
        "weights and gradients": 2 * weights,
        "optimizer": state,
        "average": average,
        "activations": activations,
    }
    shown = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in parts.items() if size)
    total = sum(parts.values()) / 1e6
    return entry("memory", f"about {total:,.0f} MB for each process: {shown}")


def _with_random_samples(run: Run) -> Run:
    recipe, folder = run.recipe, run.folder / "shards"
    count = SAMPLES * run.world_size * recipe.grad_accum_steps
    classes = recipe.num_classes or 1000
    draw = np.random.default_rng(0)
    frames = () if recipe.num_frames is None else (recipe.num_frames * (recipe.frame_stride or 1),)
    pixels = draw.integers(0, 256, (count, *frames, 64, 64), dtype=np.uint8)
    labels = draw.integers(0, classes, count)
    if recipe.num_frames is None:
        make_shards(Arrays(pixels, labels, []), folder, "train")
    else:
        make_shards(Clips(pixels, labels, []), folder, "train", VideoPreparation())
    changes = {"data_dir": str(folder), "train_split": "train", "num_classes": classes}
    changes.update(val_fraction=0.0, val_split="train" if recipe.has_validation else None)
    return run.with_recipe(recipe.model_copy(update=changes))


def saved_bytes(call: Callable[[], object], parameters: Sequence[Tensor]) -> int:
    """Return the bytes that forward passes keep for the backward pass, besides the parameters."""
    seen: dict[int, int] = {}
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(seen.values())


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _giga(flops: int | None, times: int = 1) -> str:
    return "?" if flops is None else f"{flops * times / 1e9:.3g}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _nothing(*_: object) -> None:
    pass
