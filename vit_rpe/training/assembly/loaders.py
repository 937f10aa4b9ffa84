"""Loaders of a run: plans, transforms, and the count of bad samples."""

from __future__ import annotations

from typing import Any

from vit_rpe.data import BadSamples, Images, Loader, Modality, Plan, Shards, Transform

from ..errors import RecipeError
from ..recipe.schema import Recipe
from ..run import Run
from .data_config import check_data_config
from .shards import Inputs


def training_loader(run: Run, inputs: Inputs, config: dict[str, Any]) -> Loader:
    """Make the loader to train from; `config` says how the model wants its images."""
    recipe, shards = run.recipe, inputs.train
    samples = shards.num_samples * recipe.aug_repeats
    if samples < recipe.batch_size:
        raise RecipeError(
            f"batch_size {recipe.batch_size} is more than an epoch has: {samples} samples"
        )
    plan = Plan(
        shards.lengths,
        recipe.batch_size,
        seed=recipe.seed,
        window=recipe.shuffle_window,
        repeats=recipe.aug_repeats,
    )
    return Loader(
        shards,
        plan,
        training_transform(recipe, run.modality, config),
        modality=run.modality,
        workers=recipe.workers,
        num_classes=inputs.num_classes,
        bad=_bad_samples(run, shards, "train"),
        pin_memory=run.device.type == "cuda",
        rank=run.rank,
        world_size=run.world_size,
        device=run.device,
    )


def validation_loader(run: Run, inputs: Inputs, config: dict[str, Any]) -> Loader | None:
    """Make the loader to evaluate from, if the recipe has a split for it."""
    recipe = run.recipe
    if inputs.val is None:
        return None
    return evaluation_loader(
        inputs.val,
        inputs.num_classes,
        config,
        recipe.validation_batch_size or run.per_rank // recipe.grad_accum_steps,
        modality=run.modality,
        workers=recipe.workers,
        bad=_bad_samples(run, inputs.val, "val"),
        rank=run.rank,
        world_size=run.world_size,
        device=run.device,
    )


def evaluation_loader(
    shards: Shards,
    num_classes: int,
    config: dict[str, Any],
    batch_size: int,
    *,
    modality: Modality | None = None,
    world_size: int = 1,
    **options: Any,
) -> Loader:
    """Make a loader of every sample once, in order; `batch_size` is that of one process.

    `config` is timm's data config of the model; `options` are those of a Loader, such as rank,
    workers and device.
    """
    modality = modality or Images()
    plan = Plan(shards.lengths, batch_size * world_size, shuffle=False, drop_last=False)
    return Loader(
        shards,
        plan,
        evaluation_transform(modality, config),
        modality=modality,
        world_size=world_size,
        num_classes=num_classes,
        **options,
    )


def evaluation_transform(modality: Modality, config: dict[str, Any]) -> Transform:
    """Make the transform of samples that a model judges, from timm's data config of the model."""
    check_data_config(config)
    try:
        side, options = config["input_size"][-1], _evaluation_options(config)
        return modality.transform(side, training=False, options=options)
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"evaluation (interpolation, crop_pct, ...): {error}") from None


def training_transform(recipe: Recipe, modality: Modality, config: dict[str, Any]) -> Transform:
    """Make the transform to train with; without augmentation it is that of evaluation."""
    side = config["input_size"][-1]
    if recipe.no_aug:
        options = _evaluation_options(config)
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


def _evaluation_options(config: dict[str, Any]) -> dict[str, Any]:
    names = ("interpolation", "crop_pct", "crop_mode")
    options = {name: config[name] for name in names if config.get(name) is not None}
    return {**options, "mean": tuple(config["mean"]), "std": tuple(config["std"])}


def _bad_samples(run: Run, shards: Shards, split: str) -> BadSamples:
    file = run.folder / f"bad_samples-{split}.csv"
    return BadSamples(shards.num_samples, run.recipe.max_bad_samples, file)
