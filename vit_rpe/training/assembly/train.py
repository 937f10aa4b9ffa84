"""A whole run, from a recipe to its last checkpoint."""

from __future__ import annotations

from contextlib import ExitStack

from vit_rpe.data import FolderLock

from ..distributed import on_main, say
from ..loop.pulse import Pulse
from ..loop.signals import StopFlag
from ..recipe.schema import Recipe
from ..record.progress import RunState
from ..run import Run, start_run
from .assemble import assemble
from .resume import find_resume


def train(recipe: Recipe) -> RunState:
    """Train a recipe to its end, from the beginning or from where it stopped."""
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        run = start_run(recipe)
        lock = _locked(run, stack)
        timeout = recipe.collective_timeout
        pulse = stack.enter_context(Pulse(run.folder, run.rank, run.world_size, timeout))
        resume = on_main(run.accelerator, lambda: find_resume(recipe, run.folder))
        state = assemble(run, resume).fit(stop, pulse, lock)
    say(_summary(state, run))
    return state


def _locked(run: Run, stack: ExitStack) -> FolderLock:
    """Lock the run's folder; the main process holds the lock for all."""
    lock = FolderLock(run.folder, "run")

    def hold() -> None:
        stack.enter_context(lock)

    on_main(run.accelerator, hold)
    return lock


def _summary(state: RunState, run: Run) -> str:
    lines = [f"finished: {state.epoch} epochs, {state.step} steps"]
    if state.ranking:
        name, score = state.ranking[0]
        best = run.folder / "checkpoints" / "best"
        lines.append(f"best      {run.recipe.best_of} {abs(score):.2f} in {best} ({name})")
    lines.append(f"results   {run.folder}: summary.csv, log.jsonl, tensorboard, checkpoints")
    return "\n".join(lines)
