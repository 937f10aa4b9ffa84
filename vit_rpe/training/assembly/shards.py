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
    try_decoder,
)
from vit_rpe.extras import MissingExtra

from ..distributed import main_first
from ..errors import RecipeError
from ..recipe.schema import Recipe
from ..recipe.sources import SOURCES
from ..run import Run

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


def _inputs(recipe: Recipe, modality: Modality, make: bool) -> Inputs:
    if make:
        _make(recipe)
    train, val = (_open(recipe, modality, field) for field in ("train_split", "val_split"))
    assert train is not None
    num_classes = recipe.num_classes or len(train.classes)
    if not num_classes:
        raise RecipeError(f"num_classes: the shards at {recipe.data_dir} do not say; give a number")
    if len(train.classes) > num_classes:
        raise RecipeError(
            f"num_classes: {num_classes}, but the shards have {len(train.classes)} classes"
        )
    return Inputs(train, val, num_classes)


def _make(recipe: Recipe) -> None:
    """Make the shards of `data_source`, or wait for another run that is about to."""
    if recipe.data_source is None:
        return
    info = read_info(recipe.data_dir)
    found = set() if info is None else set(info.splits)
    if {recipe.train_split, recipe.val_split or recipe.train_split} <= found:
        return
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
        return "; val_split=null trains without evaluation"
    folder = Path(recipe.data_dir).expanduser()
    if any(file.suffix[1:].lower() in modality.endings for file in _some_files(folder)):
        command = f"python tools/make_shards.py {modality.command}"
        return f"; {command} {folder} SHARDS makes shards of its files"
    return " (tools/make_shards.py makes shards)"


def _some_files(folder: Path) -> Iterator[Path]:
    """Yield files of split/class/file, or less deep; some are enough to tell their kind."""
    return islice((path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)), 1000)
