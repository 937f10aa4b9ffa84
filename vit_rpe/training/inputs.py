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
    MissingShards,
    Modality,
    Plan,
    ShardError,
    Shards,
    Transform,
    make_shards,
    modality_of,
    open_shards,
    read_info,
    try_decoder,
)
from vit_rpe.data.making import ImagePreparation, VideoPreparation, digits, moving_digits
from vit_rpe.extras import MissingExtra

from .errors import RecipeError
from .look import check_look
from .ranks import main_first
from .recipe import Recipe

PATIENCE = 600.0  # seconds to wait for another run that makes the same shards
SOURCES = {
    "digits": (digits, ImagePreparation()),
    "moving_digits": (moving_digits, VideoPreparation()),
}


@dataclass(frozen=True)
class Inputs:
    train: Shards
    val: Shards | None
    num_classes: int
    modality: Modality


def recipe_modality(recipe: Recipe) -> Modality:
    """Images or videos, as a recipe says."""
    return modality_of(
        recipe.num_frames,
        stride=recipe.frame_stride,
        clips=recipe.val_clips,
        crops=recipe.val_crops,
        backend=recipe.video_decoder,
    )


def open_inputs(recipe: Recipe, accelerator: Accelerator) -> Inputs:
    """Open the shards; the main process goes first, and makes what is missing."""
    return main_first(accelerator, lambda: _inputs(recipe, accelerator.is_main_process))


def _inputs(recipe: Recipe, make: bool) -> Inputs:
    if make:
        _make(recipe)
    modality = recipe_modality(recipe)
    train, val = (_open(recipe, field, modality) for field in ("train_split", "val_split"))
    assert train is not None
    num_classes = recipe.num_classes or len(train.classes)
    if not num_classes:
        raise RecipeError(f"num_classes: the shards at {recipe.data_dir} do not say; give a number")
    if len(train.classes) > num_classes:
        raise RecipeError(
            f"num_classes: {num_classes}, but the shards have {len(train.classes)} classes"
        )
    return Inputs(train, val, num_classes, modality)


def _make(recipe: Recipe) -> None:
    """Make the shards of `data_source`, or wait for another run that is about to."""
    if recipe.data_source is None:
        return
    info = read_info(recipe.data_dir)
    there = set() if info is None else set(info.splits)
    if {recipe.train_split, recipe.val_split or recipe.train_split} <= there:
        return
    origin, preparation = SOURCES[recipe.data_source]
    # those that are there come first: shards of another source get no company
    for split, source in sorted(origin().items(), key=lambda each: each[0] not in there):
        make_shards(source, recipe.data_dir, split, preparation, wait=PATIENCE)


def _open(recipe: Recipe, field: str, modality: Modality) -> Shards | None:
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
        hint = _hint(recipe, field, modality) if isinstance(error, MissingShards) else ""
        raise RecipeError(f"data_dir, {field}: {error}{hint}") from None


def _hint(recipe: Recipe, field: str, modality: Modality) -> str:
    """What to do where there are no shards, or none of a split."""
    if field == "val_split":
        return "; val_split=null trains without evaluation"
    folder = Path(recipe.data_dir).expanduser()
    if any(file.suffix[1:].lower() in modality.endings for file in _some_files(folder)):
        command = f"{modality.command} {folder}"
        return f"; python tools/make_shards.py {command} SHARDS makes shards of its files"
    return " (tools/make_shards.py makes shards)"


def _some_files(folder: Path) -> Iterator[Path]:
    """Files of split/class/file, or less deep; a few are enough to tell what a folder holds."""
    return islice((path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)), 1000)


def share(recipe: Recipe, world: int) -> int:
    """Samples of one process in one step."""
    parts = world * recipe.grad_accum_steps
    if recipe.batch_size % parts:
        raise RecipeError(
            f"batch_size {recipe.batch_size} has no equal parts for {world} processes x "
            f"grad_accum_steps {recipe.grad_accum_steps}; a multiple of {parts} has"
        )
    size = recipe.batch_size // world
    if recipe.mixes and size % 2:
        raise RecipeError(
            f"mixup and cutmix need an even number of samples on every process, batch_size "
            f"{recipe.batch_size} gives {size}"
        )
    return size


def training_loader(
    recipe: Recipe, inputs: Inputs, config: dict[str, Any], run: Path, **place: Any
) -> Loader:
    """`config` says how the model wants its images; `place` is rank, world_size, device."""
    shards = inputs.train
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
    return Loader(
        shards,
        plan,
        training_transform(recipe, inputs.modality, side, config),
        modality=inputs.modality,
        workers=recipe.workers,
        num_classes=inputs.num_classes,
        bad=bad,
        pin_memory=str(place.get("device", "cpu")).startswith("cuda"),
        **place,
    )


def evaluation_loader(
    shards: Shards,
    num_classes: int,
    config: dict[str, Any],
    batch_size: int,
    *,
    workers: int = 0,
    modality: Modality | None = None,
    bad: BadSamples | None = None,
    world_size: int = 1,
    **place: Any,
) -> Loader:
    """Every sample once, in order; `batch_size` is that of one process."""
    check_look(config)
    modality = modality or modality_of(None)
    plan = Plan(shards.lengths, batch_size * world_size, shuffle=False, drop_last=False)
    side, options = config["input_size"][-1], evaluation_options(config)
    try:
        transform = modality.transform(side, training=False, options=options)
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"evaluation (interpolation, crop_pct, ...): {error}") from None
    return Loader(
        shards,
        plan,
        transform,
        modality=modality,
        world_size=world_size,
        workers=workers,
        num_classes=num_classes,
        bad=bad,
        **place,
    )


def training_transform(
    recipe: Recipe, modality: Modality, side: int, config: dict[str, Any]
) -> Transform:
    if recipe.no_aug:
        options = evaluation_options(config)
        return modality.single_view().transform(side, training=False, options=options)
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
        return modality.transform(side, training=True, options=options)
    except (ValueError, AssertionError, KeyError, IndexError) as error:
        raise RecipeError(f"augmentation (aa {recipe.aa!r}, ...): {error}") from None


def evaluation_options(config: dict[str, Any]) -> dict[str, Any]:
    names = ("interpolation", "crop_pct", "crop_mode")
    options = {name: config[name] for name in names if config.get(name) is not None}
    return {**options, "mean": tuple(config["mean"]), "std": tuple(config["std"])}
