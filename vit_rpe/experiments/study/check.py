"""Everything that a study will need, put together once before anything runs."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vit_rpe.data import ShardError
from vit_rpe.training import CheckpointError, Recipe, RecipeError, assemble, start_run

from .errors import StudyError
from .file import Study
from .trials import Trial

FORWARD = 1 / 3  # of a training step: an evaluation has no backward pass


@dataclass(frozen=True)
class Setting:
    """A setting as known before it is trained; `seconds` of one run, if asked for."""

    parameters: int
    steps: int
    seconds: float | None = None


def check_settings(
    study: Study, recipes: Mapping[Trial, Recipe], timed: bool = False
) -> dict[str, Setting]:
    """Assemble the trainer of each setting, with its data; what cannot be assembled is refused."""
    found: dict[str, Setting] = {}
    for trial, recipe in recipes.items():
        if trial.setting in found:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="vit_rpe-study-") as folder:
                found[trial.setting] = _setting(recipe, Path(folder), timed)
        except (RecipeError, CheckpointError, ShardError, OSError) as error:
            raise StudyError(f"{study.path}: trial {trial.name}: {error}") from None
    return found


def _setting(recipe: Recipe, folder: Path, timed: bool) -> Setting:
    with contextlib.redirect_stderr(io.StringIO()):  # each run will say it itself
        trainer = assemble(start_run(recipe, folder))
    parameters = sum(each.numel() for each in trainer.learner.net.parameters())
    if not timed:
        return Setting(parameters, trainer.total_steps)
    times: list[float] = []  # the first step warms up
    with _one_thread():
        for batch in trainer.loader.batches(0, 3):
            begin = time.perf_counter()
            trainer.train_step(batch)
            times.append(time.perf_counter() - begin)
    evaluated = 0 if trainer.val_loader is None else trainer.val_loader.shards.num_samples
    evaluations = trainer.epochs // recipe.val_interval * evaluated / recipe.batch_size
    steps = trainer.total_steps + FORWARD * evaluations
    return Setting(parameters, trainer.total_steps, steps * min(times))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a trial does: threads that wait for each other's cores take many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
