"""`train.py`: from the command line to a run, and its exit code."""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from vit_rpe.data import FolderBusy, FolderLock, ShardError
from vit_rpe.extras import MissingExtra
from vit_rpe.files import atomic_write
from vit_rpe.messages import short

from . import recipe_file
from .build import (
    attention_path,
    build_model,
    build_teacher,
    model_arguments,
    unseen_pixels,
    with_path,
)
from .checkpoint import Checkpoints, find_checkpoint, run_of
from .errors import CheckpointError, Diverged, Miscounted, RecipeError, Stopped
from .inputs import BadSamples, Inputs, evaluation_loader, open_inputs, share, training_loader
from .log import SUMMARY
from .meter import Meter, forward_flops, reachable_flops
from .pulse import Pulse
from .ranks import leave, of_main, on_main, start
from .recipe import Recipe, table
from .signals import StopFlag
from .task import Task, Teacher
from .trainer import RunState, Trainer

DONE, FAILED, WRONG, DIVERGED, STOPPED = 0, 1, 2, 3, 75  # 75 is EX_TEMPFAIL: try again
INTERRUPTED = 128 + signal.SIGINT  # as a shell says it; pulse.py has STUCK
FREE = {
    # what may differ when a run goes on: where things lie, and what does not change the numbers
    *("workers", "output", "experiment", "resume", "data_dir", "data_source", "data_cache"),
    *("log_interval", "log_wandb", "wandb_project", "recovery_interval", "checkpoint_hist"),
    *("collective_timeout",),
    *("validation_batch_size", "max_skipped_steps", "max_bad_samples", "device", "val_interval"),
    *("grad_accum_steps", "grad_checkpointing", "torchcompile", "channels_last"),
    *("initial_checkpoint", "pretrained", "num_classes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    if args.help_recipe:
        print(table())
        return DONE
    try:
        recipe = recipe_file.load_recipe(args.recipe, args.overrides)
        if args.dry_run:
            from .dry_run import dry_run

            dry_run(recipe)
        else:
            train(recipe)
        return DONE
    except (RecipeError, CheckpointError, FolderBusy) as error:  # on all ranks alike
        _say(f"train.py: error: {error}")
        return WRONG
    except (ShardError, MissingExtra, OSError) as error:
        _say(f"train.py: error: {error}", everywhere=True)
        return WRONG
    except Miscounted as error:
        _say(f"train.py: error in the program: {error}")
        return FAILED
    except Diverged as error:
        _say(f"train.py: diverged: {error}")
        return DIVERGED
    except Stopped as error:
        _say(f"{error}; resume=auto goes on from there")
        return STOPPED
    except KeyboardInterrupt:
        _say("ended by a second Ctrl-C; resume=auto goes on from the last checkpoint")
        return INTERRUPTED
    finally:
        leave()


def train(recipe: Recipe) -> RunState:
    """Run a recipe to its end, from the beginning or from where it stopped."""
    run = run_folder(recipe)
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        accelerator = start(recipe, run)
        lock = _locked(run, accelerator, stack)
        rank, world = accelerator.process_index, accelerator.num_processes
        pulse = stack.enter_context(Pulse(run, rank, world, recipe.collective_timeout))
        resume = on_main(accelerator, lambda: _resume(recipe, run))
        trainer = prepare(recipe, accelerator, run, resume)
        state = trainer.fit(stop, pulse, lock)
    _say(_summary(state, run, recipe.best_of))
    return state


def _locked(run: Path, accelerator: Accelerator, stack: ExitStack) -> FolderLock:
    """The lock of the run's folder, which the main process holds for all."""
    lock = FolderLock(run, "run")

    def hold() -> None:
        stack.enter_context(lock)

    on_main(accelerator, hold)
    return lock


def run_folder(recipe: Recipe) -> Path:
    return Path(recipe.output).expanduser() / (recipe.experiment or "run")


def prepare(
    recipe: Recipe, accelerator: Accelerator, run: Path, resume: Path | None = None
) -> Trainer:
    """Everything that a run needs, checked; the run's folder holds the recipe as it is meant."""
    world, place = accelerator.num_processes, _place(accelerator)
    size = share(recipe, world)
    inputs = open_inputs(recipe, accelerator)
    if resume is not None:
        recipe = with_path(recipe, saved_recipe(resume).model_kwargs.get("path"))
    net, recipe = _build(recipe, accelerator, inputs)
    recipe = recipe.model_copy(update=_precision(accelerator))
    if resume is not None:
        check_same(recipe, saved_recipe(resume))
    config: dict[str, Any] = net.pretrained_cfg  # pyright: ignore
    if unseen := unseen_pixels(net, config["input_size"][-1]):
        _say(f"train.py: warning: {unseen}")
    loader = training_loader(recipe, inputs, config, run, **place)
    teacher = None
    if recipe.kd_model_name is not None:
        teacher_model = build_teacher(recipe, inputs.num_classes)
        teacher = Teacher(recipe, teacher_model, net, accelerator.device)
    trainer = Trainer(
        recipe,
        accelerator,
        net,
        model_arguments(recipe),
        Task(recipe, inputs.num_classes, teacher),
        loader,
        _val_loader(recipe, inputs, config, run, size, place),
        run,
        _meter(recipe, accelerator, net, config["input_size"][-1], inputs.modality.unit),
        resume,
    )
    on_main(accelerator, lambda: _write_recipe(recipe, run))
    return trainer


def _write_recipe(recipe: Recipe, run: Path) -> None:
    with atomic_write(run / "recipe.yaml") as file:
        file.write(recipe_file.as_yaml(recipe).encode())


def _build(recipe: Recipe, accelerator: Accelerator, inputs: Inputs) -> tuple[nn.Module, Recipe]:
    """The model, with the same attention path on every rank, and the recipe that names it."""
    torch.manual_seed(recipe.seed)
    net = build_model(recipe, inputs.num_classes, inputs.train.classes)
    path = of_main(accelerator, attention_path(net))
    recipe = with_path(recipe, path)
    if path != attention_path(net):
        torch.manual_seed(recipe.seed)
        net = build_model(recipe, inputs.num_classes, inputs.train.classes)
    return net, recipe


def _val_loader(
    recipe: Recipe, inputs: Inputs, config: dict[str, Any], run: Path, size: int, place: dict
) -> Any:
    if inputs.val is None:
        return None
    bad = BadSamples(inputs.val.num_samples, recipe.max_bad_samples, run / "bad_samples-val.csv")
    return evaluation_loader(
        inputs.val,
        inputs.num_classes,
        config,
        recipe.validation_batch_size or size // recipe.grad_accum_steps,
        workers=recipe.workers,
        modality=inputs.modality,
        bad=bad,
        **place,
    )


def _place(accelerator: Accelerator) -> dict[str, Any]:
    return {
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "device": accelerator.device,
    }


def _precision(accelerator: Accelerator) -> dict[str, Any]:
    """Mixed precision as it was settled, by the recipe or by accelerate launch."""
    kind = accelerator.mixed_precision
    names = {"bf16": "bfloat16", "fp16": "float16"}
    return {"amp": kind in names, "amp_dtype": names.get(kind, "bfloat16")}


def _meter(recipe: Recipe, accelerator: Accelerator, net: nn.Module, side: int, unit: str) -> Meter:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
        accelerator.mixed_precision, torch.float32
    )
    flops = forward_flops(net, side)
    peak = reachable_flops(accelerator.device, dtype) * accelerator.num_processes
    return Meter(recipe.batch_size, flops, peak, unit)


# --- going on


def _resume(recipe: Recipe, run: Path) -> Path | None:
    """The checkpoint to go on from; a run that is there is never written over."""
    checkpoints = Checkpoints(run / "checkpoints")
    there = checkpoints.exist() or _has_epochs(run / SUMMARY)
    if recipe.resume not in (None, "auto"):
        chosen = find_checkpoint(recipe.resume)
        if there and chosen.parent != checkpoints.folder.resolve():
            raise RecipeError(f"{run} holds another run than {chosen}: take another experiment")
        return chosen
    if not there:
        return None
    if recipe.resume is None:
        raise RecipeError(
            f"{run} holds a run already: resume=auto goes on with it, experiment=NAME starts "
            "another"
        )
    newest, wrong = checkpoints.newest()
    if newest is None:
        reason = f": {wrong[0]}" if wrong else ""
        raise CheckpointError(f"{run} holds a run, but no whole checkpoint of it{reason}")
    for error in wrong:
        _say(f"train.py: warning: {error}; going on from {newest.name}")
    return newest


def _has_epochs(summary: Path) -> bool:
    """Whether a run has finished an epoch here."""
    if not summary.is_file():
        return False
    with open(summary, newline="", errors="replace") as file:
        return len(list(csv.reader(file))) > 1


def saved_recipe(checkpoint: Path) -> Recipe:
    """The recipe of the run that a checkpoint belongs to."""
    run = run_of(checkpoint)
    if run is None:
        raise CheckpointError(
            f"{checkpoint} is not in the checkpoints/ of a run with a recipe.yaml"
        )
    return recipe_file.load_recipe(run / "recipe.yaml")


def check_same(recipe: Recipe, saved: Recipe) -> None:
    """Refuse to go on with other numbers than those that the run began with; it may get longer."""
    for name in Recipe.model_fields:
        now, before = getattr(recipe, name), getattr(saved, name)
        longer = name == "epochs" and now > before
        if name not in FREE and now != before and not longer:
            raise RecipeError(
                f"{name}: the run began with {before!r}, now it is {now!r}; a run goes on only as "
                "it began, or for more epochs; experiment=NAME starts another (initial_checkpoint "
                "from its weights)"
            )


def _summary(state: RunState, run: Path, best_of: str) -> str:
    lines = [f"finished: {state.epoch} epochs, {state.step} steps"]
    if state.ranking:
        name, score = state.ranking[0]
        where = run / "checkpoints" / "best"
        lines.append(f"best      {best_of} {abs(score):.2f} in {where} ({name})")
    lines.append(f"results   {run}: summary.csv, log.jsonl, tensorboard, checkpoints")
    return "\n".join(lines)


# --- the command line


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> Any:
        self.exit(WRONG, f"{self.prog}: error: {message}\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="train.py", description="Train a timm model by a recipe.")
    add = parser.add_argument
    add("--recipe", help="a YAML file; recipes/ has some")
    add("overrides", nargs="*", metavar="key=value", help="keys of the recipe to change")
    add("--dry-run", action="store_true", help="check everything with one small batch, then stop")
    add("--help-recipe", action="store_true", help="print all keys of a recipe")
    args = parser.parse_intermixed_args(argv)
    if not args.help_recipe and args.recipe is None:
        parser.error("--recipe is required (recipes/quickstart.yaml is a good first one)")
    return args


def _say(text: str, everywhere: bool = False) -> None:
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or everywhere:
        text = "\n".join(map(short, text.splitlines()))
        print(text if rank == 0 else f"rank {rank}: {text}", file=sys.stderr, flush=True)
