"""Resuming a run: from which checkpoint, and whether its recipe allows it."""

from __future__ import annotations

import csv
from pathlib import Path

from ..distributed import warn
from ..errors import CheckpointError, RecipeError
from ..recipe.on_resume import may_follow
from ..recipe.schema import Recipe
from ..record.checkpoint import Checkpoints
from ..record.find import find_checkpoint
from ..record.log import SUMMARY


def find_resume(recipe: Recipe, folder: Path) -> Path | None:
    """Return the checkpoint to resume from; a run that is in the folder is never overwritten."""
    checkpoints = Checkpoints(folder / "checkpoints")
    has_run = checkpoints.exist() or _has_epochs(folder / SUMMARY)
    if recipe.resume not in (None, "auto"):
        chosen = find_checkpoint(recipe.resume)
        if has_run and chosen.parent != checkpoints.folder.resolve():
            raise RecipeError(f"{folder} holds another run than {chosen}: take another experiment")
        return chosen
    if not has_run:
        return None
    if recipe.resume is None:
        raise RecipeError(
            f"{folder} holds a run already: resume=auto continues it, experiment=NAME starts "
            "another"
        )
    newest, wrong = checkpoints.newest()
    if newest is None:
        reason = f": {wrong[0]}" if wrong else ""
        raise CheckpointError(f"{folder} holds a run, but no whole checkpoint of it{reason}")
    for error in wrong:
        warn(f"{error}; continuing from {newest.name}")
    return newest


def check_same(recipe: Recipe, saved: Recipe) -> None:
    """Refuse to resume with keys that the run did not begin with, unless they may change."""
    for name, field in Recipe.model_fields.items():
        now, before = getattr(recipe, name), getattr(saved, name)
        if not may_follow(field, before, now):
            raise RecipeError(
                f"{name}: the run began with {before!r}, now it is {now!r}; a run continues only "
                "as it began, or for more epochs; experiment=NAME starts another "
                "(initial_checkpoint from its weights)"
            )


def _has_epochs(summary: Path) -> bool:
    """Return whether a run has finished an epoch here."""
    if not summary.is_file():
        return False
    with open(summary, newline="", errors="replace") as file:
        return len(list(csv.reader(file))) > 1
