"""From a recipe to a timm model that knows how its images must look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError, safe_open
from timm.data.config import resolve_model_data_config
from timm.models import get_pretrained_cfg, parse_model_name
from timm.models._hub import load_model_config_from_path
from torch import nn

from .checkpoint import find_weights
from .errors import RecipeError
from .recipe import Recipe


def build_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """The model of a recipe; its `pretrained_cfg` says what evaluation needs to know."""
    kwargs = model_arguments(recipe)
    model = _create(
        recipe.model,
        kwargs,
        num_classes,
        recipe.initial_checkpoint,
        recipe.pretrained,
        "model_kwargs",
    )
    if recipe.grad_checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise RecipeError(f"grad_checkpointing: {recipe.model} cannot do it")
        model.set_grad_checkpointing(True)  # pyright: ignore
    config = {**resolve_model_data_config(model), **_look(recipe)}  # pyright: ignore
    side = recipe.img_size or config["input_size"][-1]
    config["input_size"] = (3, side, side)
    model.pretrained_cfg = {**_plain(model.pretrained_cfg), **config}  # pyright: ignore
    return model


def build_teacher(recipe: Recipe, num_classes: int) -> nn.Module:
    assert recipe.kd_model_name is not None
    name, kwargs = recipe.kd_model_name, dict(recipe.kd_model_kwargs)
    if recipe.img_size is not None and _has_fixed_size(name):
        kwargs.setdefault("img_size", recipe.img_size)
    pretrained = recipe.kd_checkpoint is None
    teacher = _create(
        name, kwargs, num_classes, recipe.kd_checkpoint, pretrained, "kd_model_kwargs"
    )
    return teacher.eval().requires_grad_(False)


def model_arguments(recipe: Recipe) -> dict[str, Any]:
    """What makes this model again, beside its name and the number of classes."""
    kwargs = dict(recipe.model_kwargs)
    for key, field in (("drop_rate", "drop"), ("drop_path_rate", "drop_path")):
        if getattr(recipe, field):
            kwargs[key] = getattr(recipe, field)
    if recipe.img_size is not None and _has_fixed_size(recipe.model):
        kwargs.setdefault("img_size", recipe.img_size)
    if recipe.num_frames is not None:
        kwargs.setdefault("num_frames", recipe.num_frames)
    return kwargs


def with_path(recipe: Recipe, path: str | None) -> Recipe:
    """The recipe with the attention path that was chosen, so that others choose the same."""
    if path is None:
        return recipe
    return recipe.model_copy(update={"model_kwargs": {**recipe.model_kwargs, "path": path}})


def attention_path(model: nn.Module) -> str | None:
    """The path that a model has settled for, if it is one that has paths."""
    path = getattr(model, "path", None)
    return path if isinstance(path, str) else None


def _create(
    name: str,
    kwargs: dict[str, Any],
    num_classes: int,
    checkpoint: str | None,
    pretrained: bool,
    field: str,
) -> nn.Module:
    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": num_classes, **kwargs}
    if checkpoint is not None:
        file = find_weights(checkpoint)
        overlay = {"file": str(file), "custom_load": False, "num_classes": num_classes}
        classifier = getattr(get_pretrained_cfg(name), "classifier", None)
        overlay["num_classes"] = _classes_in(file, classifier) or num_classes
        options.update(pretrained=True, pretrained_cfg_overlay=overlay)
    try:
        return timm.create_model(name, **options)
    except (TypeError, ValueError, RuntimeError, AssertionError, OSError) as error:
        what = "" if checkpoint is None else f" from {checkpoint}"
        text = " ".join(str(error).split())
        raise RecipeError(f"{name} cannot be built with {field} {kwargs}{what}: {text}") from None


def _classes_in(file: Path, classifier: str | tuple[str, ...] | None) -> int | None:
    """How many classes the classifier in a file has: timm must know when it differs."""
    try:
        with safe_open(file, framework="pt") as weights:
            name = f"{classifier}.weight"
            return weights.get_slice(name).get_shape()[0] if name in weights.keys() else None
    except SafetensorError as error:
        raise RecipeError(f"{file} is not a safetensors file: {error}") from None


def _has_fixed_size(name: str) -> bool:
    """Whether timm's constructor wants to know the size of the images."""
    source, identity = parse_model_name(name)
    if source == "local-dir":
        return bool(load_model_config_from_path(identity)[0].get("fixed_input_size"))
    return bool(getattr(get_pretrained_cfg(name), "fixed_input_size", False))


def _look(recipe: Recipe) -> dict[str, Any]:
    names = ("interpolation", "crop_pct", "mean", "std")
    return {name: getattr(recipe, name) for name in names if getattr(recipe, name) is not None}


def _plain(config: Any) -> dict[str, Any]:
    return dict(config) if isinstance(config, dict) else config.to_dict()
