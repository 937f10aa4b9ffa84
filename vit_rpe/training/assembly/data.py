"""The data of a recipe: shards, plans and loaders of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from vit_rpe.data import (
    BadSamples,
    Loader,
    Plan,
    ShardError,
    Shards,
    Transform,
    make_shards,
    open_shards,
)
from vit_rpe.data.errors import MissingShards
from vit_rpe.data.shards.layout import read_info
from vit_rpe.data.shards.storage import Storage

from ..distributed import main_first
from ..errors import RecipeError
from ..medium import Images, Medium, medium_of, try_decoder
from ..recipe.schema import Recipe
from ..recipe.sources import SOURCES
from .data_config import check_look

PATIENCE = 600.0  # seconds to wait for another run that makes the same shards


@dataclass(frozen=True)
class Inputs:
    train: Shards
    val: Shards | None
    num_classes: int


def open_inputs(recipe: Recipe, accelerator: Accelerator) -> Inputs:
    """Open the shards; the main process goes first, and makes what is missing."""
    return main_first(accelerator, lambda: _inputs(recipe, accelerator.is_main_process))


def _inputs(recipe: Recipe, make: bool) -> Inputs:
    if make:
        _make(recipe)
    train, val = _open(recipe, "train_split"), _open(recipe, "val_split")
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
    info = read_info(recipe.data_dir, Storage())
    there = set() if info is None else set(info.splits)
    if {recipe.train_split, recipe.val_split or recipe.train_split} <= there:
        return
    made = SOURCES[recipe.data_source]
    # splits that exist come first: shards of another source are noticed before any is added
    for split, samples in sorted(made.splits().items(), key=lambda each: each[0] not in there):
        make_shards(samples, recipe.data_dir, split, made.preparation, wait=PATIENCE)


def _open(recipe: Recipe, field: str) -> Shards | None:
    split = getattr(recipe, field)
    if split is None:
        return None
    medium = medium_of(recipe)
    try:
        shards = open_shards(
            recipe.data_dir, split, endings=medium.endings, cache=recipe.data_cache
        )
        try_decoder(medium, shards)
        return shards
    except ShardError as error:
        hint = _hint(recipe, field) if isinstance(error, MissingShards) else ""
        raise RecipeError(f"data_dir, {field}: {error}{hint}") from None


def _hint(recipe: Recipe, field: str) -> str:
    """What to do where there are no shards, or none of a split."""
    if field == "val_split":
        return "; val_split=null trains without evaluation"
    folder = Path(recipe.data_dir).expanduser()
    command = "video" if recipe.num_frames is not None else "folder"
    if any(file.suffix[1:].lower() in medium_of(recipe).endings for file in _some_files(folder)):
        return f"; python tools/make_shards.py {command} {folder} SHARDS makes shards of its files"
    return " (tools/make_shards.py makes shards)"


def _some_files(folder: Path) -> Iterator[Path]:
    """Files of split/class/file, or less deep; a few are enough to tell what a folder holds."""
    return islice((path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)), 1000)


def share(recipe: Recipe, world: int) -> int:
    """Samples of one process in one step."""
    try:
        return recipe.per_rank(world)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def training_loader(
    recipe: Recipe,
    shards: Shards,
    num_classes: int,
    config: dict[str, Any],
    run: Path,
    **place: Any,
) -> Loader:
    """`config` says how the model wants its images; `place` is rank, world, device."""
    if shards.num_samples * recipe.aug_repeats < recipe.batch_size:
        raise RecipeError(
            f"batch_size {recipe.batch_size} is more than an epoch has: "
            f"{shards.num_samples * recipe.aug_repeats} samples"
        )
    plan = Plan(
        shards.lengths,
        recipe.batch_size,
        seed=recipe.seed,
        window=recipe.shuffle_window,
        repeats=recipe.aug_repeats,
    )
    side = config["input_size"][-1]
    bad = BadSamples(shards.num_samples, recipe.max_bad_samples, run / "bad_samples-train.csv")
    return _loader(
        recipe, shards, plan, training_transform(recipe, side, config), num_classes, bad, place
    )


def evaluation_loader(
    shards: Shards,
    num_classes: int,
    config: dict[str, Any],
    batch_size: int,
    *,
    workers: int = 0,
    medium: Medium | None = None,
    bad: BadSamples | None = None,
    world: int = 1,
    **place: Any,
) -> Loader:
    """Every sample once, in order; `batch_size` is that of one process."""
    check_look(config)
    medium = medium or Images()
    plan = Plan(shards.lengths, batch_size * world, shuffle=False, drop_last=False)
    side, options = config["input_size"][-1], evaluation_options(config)
    try:
        transform = medium.transform(side, training=False, options=options)
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"evaluation (interpolation, crop_pct, ...): {error}") from None
    return Loader(
        shards,
        plan,
        transform,
        decode=medium.decode,
        world=world,
        workers=workers,
        num_classes=num_classes,
        bad=bad,
        **place,
    )


def training_transform(recipe: Recipe, side: int, config: dict[str, Any]) -> Transform:
    if recipe.no_aug:
        single = medium_of(recipe.model_copy(update={"val_clips": 1, "val_crops": 1}))
        return single.transform(side, training=False, options=evaluation_options(config))
    options = {
        "scale": tuple(recipe.scale),
        "ratio": tuple(recipe.ratio),
        "hflip": recipe.hflip,
        "vflip": recipe.vflip,
        "color_jitter": recipe.color_jitter,
        "auto_augment": recipe.aa,
        "re_prob": recipe.reprob,
        "re_mode": recipe.remode,
        "re_count": recipe.recount,
        "interpolation": recipe.train_interpolation,
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
    }
    try:
        return medium_of(recipe).transform(side, training=True, options=options)
    except (ValueError, AssertionError, KeyError, IndexError) as error:
        raise RecipeError(f"augmentation (aa {recipe.aa!r}, ...): {error}") from None


def evaluation_options(config: dict[str, Any]) -> dict[str, Any]:
    names = ("interpolation", "crop_pct", "crop_mode")
    options = {name: config[name] for name in names if config.get(name) is not None}
    return {**options, "mean": tuple(config["mean"]), "std": tuple(config["std"])}


def _loader(
    recipe: Recipe,
    shards: Shards,
    plan: Plan,
    transform: Transform,
    num_classes: int,
    bad: BadSamples,
    place: dict[str, Any],
) -> Loader:
    return Loader(
        shards,
        plan,
        transform,
        decode=medium_of(recipe).decode,
        workers=recipe.workers,
        num_classes=num_classes,
        bad=bad,
        pin_memory=str(place.get("device", "cpu")).startswith("cuda"),
        **place,
    )
