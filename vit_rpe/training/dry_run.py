"""`--dry-run`: everything that a run does, with one small batch, and what the run would need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vit_rpe.data.making import Arrays, Clips, VideoPreparation, make_shards

from . import recipe_file
from .build import attention_path
from .errors import RecipeError
from .evaluate import observe
from .inputs import open_inputs, share
from .meter import BACKWARD
from .ranks import main_first, of_main, start
from .recipe import Recipe
from .run import prepare
from .trainer import Trainer

SAMPLES = 2  # of a piece of a batch: enough to mix


def dry_run(recipe: Recipe) -> None:
    """Resolve, build, count; then one small batch through a step, an evaluation, a checkpoint."""
    accelerator = start(recipe)
    world, pieces = accelerator.num_processes, recipe.grad_accum_steps
    piece = share(recipe, world) // pieces
    say = print if accelerator.is_main_process else _nothing
    say(recipe_file.as_yaml(recipe))
    with tempfile.TemporaryDirectory(prefix="vit_rpe-dry-run-") as folder:
        run = Path(of_main(accelerator, folder))
        small = _with_data(recipe, accelerator, run, say)
        changes = {"batch_size": SAMPLES * world * pieces, "validation_batch_size": SAMPLES}
        small = small.model_copy(update={**changes, "workers": 0, "log_wandb": False})
        trainer = prepare(small, accelerator, run)
        net, flops = trainer.learner.net, trainer.meter.flops
        path = attention_path(net)
        say(f"processes   {world} on {accelerator.device.type}, {_precision(accelerator)}")
        say(f"batch       {recipe.batch_size} = {world} processes x {pieces} pieces x {piece}")
        say(f"model       {recipe.model}, {_count(net):,} parameters")
        say(f"attention   {path or 'the model decides'}")
        sample = "an image" if recipe.num_frames is None else "a clip"
        say(f"FLOPs       {_giga(flops)} G for {sample}, {_giga(flops, BACKWARD)} G in training")
        say(_memory(trainer, _step(trainer), piece))
        say("a step, an evaluation and a checkpoint: passed")


def _with_data(recipe: Recipe, accelerator: Accelerator, run: Path, say: Any) -> Recipe:
    """The recipe with the data that it names, or with random images where there are none."""
    try:
        inputs = open_inputs(recipe, accelerator)
    except RecipeError as error:
        kind = "images" if recipe.num_frames is None else "clips"
        say(f"data        {error}: random {kind} stand in")
        return main_first(
            accelerator, lambda: _with_random_images(recipe, run, accelerator.num_processes)
        )
    samples = inputs.train.num_samples * recipe.aug_repeats
    steps = samples // recipe.batch_size
    named, classes = len(inputs.train.classes), f"{inputs.num_classes} classes"
    if named and named < inputs.num_classes:
        classes += f" (num_classes), of which the shards name {named}"
    say(f"data        {samples} samples, {steps} steps in an epoch, {classes}")
    return recipe


def _step(trainer: Trainer) -> int:
    """A step, an evaluation and a checkpoint; gives the bytes that a piece keeps."""
    batch = next(iter(trainer.loader.batches(0, 1)))
    saved = saved_bytes(lambda: trainer.train_step(batch), trainer.learner.parameters)
    if trainer.val_loader is not None:
        first = islice(trainer.val_loader.epoch(0), 1)
        observe(trainer.learner.net, first, trainer.accelerator)
    trainer.save("dry-run")
    return saved // trainer.recipe.grad_accum_steps


def _memory(trainer: Trainer, saved: int, piece: int) -> str:
    """Parameters, gradients, state of the optimiser and average; activations by proportion."""
    learner = trainer.learner
    weights = _bytes(learner.net.parameters())
    state = [v for s in learner.optimizer.state.values() for v in s.values()]
    state = _bytes(v for v in state if isinstance(v, Tensor))
    average = weights if learner.ema is not None else 0
    activations = saved * piece // SAMPLES
    parts = {
        "weights and gradients": 2 * weights,
        "optimiser": state,
        "average": average,
        "activations": activations,
    }
    shown = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in parts.items() if size)
    return f"memory      about {sum(parts.values()) / 1e6:,.0f} MB for each process: {shown}"


def _with_random_images(recipe: Recipe, run: Path, world: int) -> Recipe:
    count, classes = SAMPLES * world * recipe.grad_accum_steps, recipe.num_classes or 1000
    draw = np.random.default_rng(0)
    frames = () if recipe.num_frames is None else (recipe.num_frames * (recipe.frame_stride or 1),)
    pixels = draw.integers(0, 256, (count, *frames, 64, 64), dtype=np.uint8)
    labels = draw.integers(0, classes, count)
    folder, val = run / "shards", recipe.val_split and "train"
    if recipe.num_frames is None:
        make_shards(Arrays(pixels, labels, []), folder, "train")
    else:
        make_shards(Clips(pixels, labels, []), folder, "train", VideoPreparation())
    changes = {"data_dir": str(folder), "train_split": "train", "val_split": val}
    return recipe.model_copy(update={**changes, "num_classes": classes})


def saved_bytes(call: Callable[[], object], parameters: Sequence[Tensor]) -> int:
    """Bytes that forward passes keep for the backward pass, beside the parameters."""
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


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _giga(flops: int | None, times: int = 1) -> str:
    return "?" if flops is None else f"{flops * times / 1e9:.3g}"


def _precision(accelerator: Accelerator) -> str:
    kind = accelerator.mixed_precision
    return "float32" if kind == "no" else f"mixed precision {kind}"


def _nothing(*_: object) -> None:
    pass
