"""The shards of a recipe: opened, or made first by a data source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vit_rpe.data import (
    MissingShards,
    Modality,
    ShardError,
    Shards,
    make_shards,
    open_shards,
    read_info,
    split_by_key,
    try_decoder,
)
from vit_rpe.extras import MissingExtra
from vit_rpe.program import typed

from ..distributed import main_first, say
from ..errors import RecipeError
from ..recipe.schema import Recipe
from ..recipe.sources import SOURCES
from ..run import Run, modality_for

PATIENCE = 600.0  # seconds to wait for another run that makes the same shards


@dataclass(frozen=True)
class Inputs:
    """The shards of a run's splits, and the number of classes."""

    train: Shards
    val: Shards | None
    num_classes: int


def open_inputs(run: Run) -> Inputs:
    """Open the shards; the main process goes first, and makes what is missing."""
    return main_first(run.accelerator, lambda: _inputs(run.recipe, run.modality, run.is_main))


def validation_shards(recipe: Recipe) -> tuple[Shards | None, Modality]:
    """Open what a recipe evaluates on, as it was; nothing is made."""
    modality = modality_for(recipe)
    return _splits(recipe, modality)[1], modality


def _inputs(recipe: Recipe, modality: Modality, make: bool) -> Inputs:
    if make:
        _make(recipe)
    train, val = _splits(recipe, modality)
    num_classes = recipe.num_classes or len(train.classes)
    if not num_classes:
        raise RecipeError(f"num_classes: the shards at {recipe.data_dir} do not say; give a number")
    if len(train.classes) > num_classes:
        raise RecipeError(
            f"num_classes: {num_classes}, but the shards have {len(train.classes)} classes"
        )
    return Inputs(train, val, num_classes)


def _splits(recipe: Recipe, modality: Modality) -> tuple[Shards, Shards | None]:
    """Open what is trained on and what is evaluated: two splits, or two parts of one."""
    train = _open(recipe, modality, "train_split")
    assert train is not None
    if not recipe.val_fraction:
        return train, _open(recipe, modality, "val_split")
    try:
        return split_by_key(train, recipe.val_fraction)
    except ShardError as error:
        raise RecipeError(f"val_fraction: {error}") from None


def _make(recipe: Recipe) -> None:
    """Make the shards of `data_source`, or wait for another run that is about to."""
    if recipe.data_source is None:
        return
    info = read_info(recipe.data_dir)
    found = set() if info is None else set(info.splits)
    if {recipe.train_split, recipe.val_split or recipe.train_split} <= found:
        return
    say(f"vit_rpe makes the data, once: {recipe.data_source}, in {recipe.data_dir}")
    made = SOURCES[recipe.data_source]
    # splits that exist come first: shards of another source are noticed before any is added
    for split, samples in sorted(made.splits().items(), key=lambda each: each[0] not in found):
        make_shards(samples, recipe.data_dir, split, made.preparation, wait=PATIENCE)


def _open(recipe: Recipe, modality: Modality, field: str) -> Shards | None:
    split = getattr(recipe, field)
    if split is None:
        return None
    try:
        shards = open_shards(
            recipe.data_dir, split, endings=modality.endings, cache=recipe.data_cache
        )
        try_decoder(modality, shards)
        return shards
    except (ShardError, MissingExtra) as error:
        hint = _hint(recipe, modality, field) if isinstance(error, MissingShards) else ""
        raise RecipeError(f"data_dir, {field}: {error}{hint}") from None


def _hint(recipe: Recipe, modality: Modality, field: str) -> str:
    """Say what to do if there are no shards, or none of a split."""
    if field == "val_split":
        return (
            "; val_fraction=0.1 evaluates a part of the training split, val_split=null trains "
            "without evaluation"
        )
    folder = Path(recipe.data_dir).expanduser()
    if any(file.suffix[1:].lower() in modality.endings for file in _some_files(folder)):
        command = typed("shards", modality.command, folder, "SHARDS")
        return f"; {command} makes shards of its files"
    return f" ({typed('shards')} makes shards)"


def _some_files(folder: Path) -> Iterator[Path]:
    """Yield files of split/class/file, or less deep; some are enough to tell their kind."""
    return islice((path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)), 1000)
