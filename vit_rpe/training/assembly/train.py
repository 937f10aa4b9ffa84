"""A whole run, from a recipe to its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from vit_rpe.data import FolderLock
from vit_rpe.messages import counted, entry

from ..distributed import on_main, say
from ..loop.pulse import Pulse
from ..loop.signals import StopFlag
from ..recipe.schema import Recipe
from ..record.progress import RunState
from ..record.progress_bar import duration
from ..run import Run, start_run
from .assemble import assemble
from .introduction import introduction
from .resume import find_resume


def train(recipe: Recipe, provenance: Mapping[str, Any] | None = None) -> RunState:
    """Train a recipe to its end, from the beginning or from where it stopped.

    `provenance` (of `load_recipe`'s arguments) is recorded with the run.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        run = start_run(recipe, provenance=provenance)
        lock = _locked(run, stack)
        timeout = recipe.collective_timeout
        pulse = stack.enter_context(Pulse(run.folder, run.rank, run.world_size, timeout))
        resume = on_main(run.accelerator, lambda: find_resume(recipe, run.folder))
        trainer = assemble(run, resume)
        say(introduction(run, trainer, resume))
        begun, start = trainer.state.step, perf_counter()
        state = trainer.fit(stop, pulse, lock)
    say(_summary(state, run, begun, perf_counter() - start))
    return state


def _locked(run: Run, stack: ExitStack) -> FolderLock:
    """Lock the run's folder; the main process holds the lock for all."""
    lock = FolderLock(run.folder, "run")

    def hold() -> None:
        stack.enter_context(lock)

    on_main(run.accelerator, hold)
    return lock


def _summary(state: RunState, run: Run, begun: int, seconds: float) -> str:
    """Say what the run has come to, and where it is."""
    total = f"{counted(state.epoch, 'epoch')}, {counted(state.step, 'step')}"
    here = f"; the last {state.step - begun:,}" if begun else ""
    time = f"{here} in {duration(seconds)}" if begun < state.step else ", before"
    lines = [entry("finished", total + time)]
    if state.ranking:
        name, score = state.ranking[0]
        lines.append(entry("best", f"{_best(run, name, score)}: {run.folder}/checkpoints/best"))
    lines.append(entry("results", f"{run.folder}: summary.csv, log.jsonl, tensorboard/"))
    return "\n".join(lines)


def _best(run: Run, name: str, score: float) -> str:
    """Say which figure is best, of what, and when: `ema_top1 98.31 of val in epoch 40`."""
    epoch = int(name.split("-")[1])  # epoch-0040, or epoch-0040-2 where there was one before
    figure = f"{abs(score):.4f}" if run.recipe.eval_metric == "loss" else f"{abs(score):.2f} %"
    return f"{run.recipe.best_of} {figure} of {run.recipe.validation}, in epoch {epoch}"
