"""The trials of a study: which runs there are, and the recipe of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from vit_rpe.messages import shown
from vit_rpe.training import Recipe, RecipeError, load_recipe

from .errors import StudyError
from .file import Block, Study

# where files are, how fast a run is, what is kept of it: runs that differ only here are the same
INDIFFERENT = {
    *("data_dir", "data_source", "data_cache", "workers", "device", "output", "experiment"),
    *("resume", "checkpoint_hist", "recovery_interval", "log_interval", "log_wandb"),
    *("wandb_project", "collective_timeout", "max_skipped_steps", "validation_batch_size"),
}
OURS = ("seed", "output", "experiment", "resume", "val_split", "val_fraction")  # keys that we set


@dataclass(frozen=True)
class Trial:
    """One run: a level of each factor, and a seed; `changes` are keys of the recipe."""

    levels: tuple[tuple[str, str], ...]
    seed: int
    changes: dict[str, Any] = field(compare=False)

    @property
    def setting(self) -> str:
        """The name of the setting: `relu-offset-with`."""
        return "-".join(level for _, level in self.levels)

    @property
    def name(self) -> str:
        return f"{self.setting}-seed{self.seed}"


def trials_of(study: Study) -> list[Trial]:
    """Return all trials in the order in which they run: by block, and there seed by seed."""
    trials: list[Trial] = []
    for block in study.blocks:
        for seed in block.seeds or study.seeds:
            for levels in _combinations(study, block):
                trials.append(Trial(levels, seed, _changes(study, dict(levels))))
    seen: set[Trial] = set()
    for trial in trials:
        if trial in seen:
            raise StudyError(f"{study.path}: the trial {trial.name} is there twice")
        seen.add(trial)
    return trials


def _combinations(study: Study, block: Block) -> list[tuple[tuple[str, str], ...]]:
    names = [
        block.levels.get(factor, [next(iter(levels))]) for factor, levels in study.factors.items()
    ]
    found = [tuple(zip(study.factors, each, strict=True)) for each in product(*names)]
    left = [each for each in found if not any(_is_in(each, out) for out in block.leave_out)]
    if not left:
        raise StudyError(f"{study.path}: a block leaves out all of its trials")
    return left


def _is_in(levels: tuple[tuple[str, str], ...], region: Mapping[str, Sequence[str]]) -> bool:
    return all(level in region[factor] for factor, level in levels if factor in region)


def _changes(study: Study, levels: dict[str, str]) -> dict[str, Any]:
    """Return the keys that a trial changes; two factors may not set the same key."""
    changes = _flat(study.overrides)
    owners: dict[str, str] = {}
    for factor, level in levels.items():
        for key, value in _flat(study.factors[factor][level]).items():
            if key in owners:
                raise StudyError(f"{study.path}: {key} is set by {owners[key]} and by {factor}")
            owners[key] = factor
            changes[key] = value
    wrong = next((key for key in changes if key in OURS), None)
    if wrong is not None:
        own = "seeds, split and val_fraction"
        raise StudyError(f"{study.path}: {wrong} belongs to the study as a whole ({own})")
    return changes


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Write `model_kwargs: {rpe: none}` as `model_kwargs.rpe: none`: levels are merged by keys."""
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if isinstance(value, dict) and value:
            flat.update({f"{key}.{inner}": each for inner, each in value.items()})
        else:
            flat[key] = value
    return flat


def arguments_of(
    study: Study, trial: Trial, overrides: Sequence[str] = (), runs: Path = Path("runs")
) -> list[str]:
    """Return the `key=value` that make the recipe of a trial of the study's base."""
    values: dict[str, Any] = dict(trial.changes)
    if study.val_fraction:
        values.update(train_split=study.split, val_fraction=study.val_fraction)
    else:
        values.update(val_split=study.split, val_fraction=0.0)
    ours = {"seed": trial.seed, "output": str(runs), "experiment": trial.name, "resume": "auto"}
    given = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return [*given, *overrides, *(f"{key}={json.dumps(value)}" for key, value in ours.items())]


def recipe_of(
    study: Study, trial: Trial, overrides: Sequence[str] = (), runs: Path = Path("runs")
) -> Recipe:
    """Return the recipe of a trial, checked."""
    try:
        recipe = load_recipe(study.base, arguments_of(study, trial, overrides, runs))
    except RecipeError as error:
        text = str(error).removeprefix("command line: ")
        raise StudyError(f"{study.path}: trial {trial.name}: {text}") from None
    if not study.val_fraction and study.split == recipe.train_split:
        raise StudyError(
            f"{study.path}: split: {study.split} is trained on; val_fraction holds a part of it out"
        )
    return recipe


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return what decides the numbers of a run: keys that are not at their defaults, but seed."""
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    return {k: v for k, v in values.items() if k not in INDIFFERENT and k != "seed"}


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides of keys that the study sets for each trial."""
    for each in overrides:
        key = each.partition("=")[0]
        if key in OURS:
            raise StudyError(f"{shown(each)}: {key} is set by the study")


def check_different(study: Study, recipes: Mapping[Trial, Recipe]) -> None:
    """Refuse two trials that would be the same run."""
    seen: dict[str, Trial] = {}
    for trial, recipe in recipes.items():
        key = json.dumps([trial.seed, settings_of(recipe)], sort_keys=True)
        if key in seen:
            raise StudyError(f"{study.path}: {seen[key].name} and {trial.name} are the same run")
        seen[key] = trial
