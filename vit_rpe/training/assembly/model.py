"""From a recipe to a timm model that knows how its images must be prepared."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import timm
from timm.data.config import resolve_model_data_config
from timm.models import get_pretrained_cfg, parse_model_name
from timm.models._hub import load_model_config_from_path
from torch import nn

from ..errors import CheckpointError, RecipeError
from ..recipe.schema import Recipe
from ..record.find import find_weights
from ..record.saved_model import shapes_in
from .misfit import is_of, listed, misfit

_BRIEF = reprlib.Repr()
_BRIEF.maxdict = 20


def build_model(recipe: Recipe, num_classes: int, classes: Sequence[str] = ()) -> nn.Module:
    """Build the model of a recipe; its `pretrained_cfg` says what evaluation needs to know.

    `classes` are the names of the classes, as far as they have names.
    """
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
    config = {**resolve_model_data_config(model), **_data_config(recipe)}  # pyright: ignore
    side = recipe.img_size or config["input_size"][-1]
    config.update(input_size=(3, side, side), num_classes=num_classes)
    config["label_names"] = list(classes) or None  # else those of published weights
    model.pretrained_cfg = {**_plain(model.pretrained_cfg), **config}  # pyright: ignore
    return model


def build_teacher(recipe: Recipe, num_classes: int) -> nn.Module:
    """Build the model that teaches, which does not learn itself."""
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
    """Return what makes this model again, besides its name and the number of classes."""
    kwargs = dict(recipe.model_kwargs)
    for key, field in (("drop_rate", "drop"), ("drop_path_rate", "drop_path")):
        if getattr(recipe, field):
            kwargs[key] = getattr(recipe, field)
    if recipe.img_size is not None and _has_fixed_size(recipe.model):
        kwargs.setdefault("img_size", recipe.img_size)
    if recipe.num_frames is not None:
        kwargs.setdefault("num_frames", recipe.num_frames)
    return kwargs


def loaded_weights(recipe: Recipe, model: nn.Module) -> list[str]:
    """Say in a few lines what a model has of its `initial_checkpoint`, and what it has not.

    timm has loaded everything but the classifier, which has to fit the number of classes.
    """
    assert recipe.initial_checkpoint is not None
    file = find_weights(recipe.initial_checkpoint)
    given, own, heads = shapes_in(file), model.state_dict(), _classifiers(recipe.model)
    new = [n for n in own if is_of(n, heads) and tuple(given.get(n, ())) != tuple(own[n].shape)]
    resized = [n for n in own if n in given and tuple(given[n]) != tuple(own[n].shape)]
    resized = [name for name in resized if name not in new]
    lines = [f"{len(own) - len(new)} of {len(own)} tensors, from {file}"]
    lines.append(listed("{} left as initialized, for other classes", new))
    lines.append(listed("{} resampled to this size", resized))
    return [line for line in lines if line]


def unseen_pixels(model: nn.Module, side: int) -> str | None:
    """Say which pixels are in no patch, if any are."""
    embed = getattr(model, "patch_embed", None)
    patch = None if getattr(embed, "dynamic_img_pad", False) else getattr(embed, "patch_size", None)
    size = patch[-1] if isinstance(patch, tuple) else patch
    if not isinstance(size, int) or side % size == 0:
        return None
    return (
        f"img_size {side} is no multiple of the patch size {size}: the model does not see the last "
        f"{side % size} rows and columns of pixels"
    )


def _create(
    name: str,
    kwargs: dict[str, Any],
    num_classes: int,
    checkpoint: str | None,
    pretrained: bool,
    field: str,
) -> nn.Module:
    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": num_classes, **kwargs}
    try:
        if checkpoint is None:
            return timm.create_model(name, **options)
        return _create_from(name, options, num_classes, checkpoint)
    except (RecipeError, CheckpointError):
        raise
    except Exception as error:  # constructors raise many kinds: all come from the arguments
        text = " ".join(str(error).split()) or type(error).__name__
        raise RecipeError(
            f"{name} cannot be built with {field} {_BRIEF.repr(kwargs)}: {text}"
        ) from None


def _create_from(
    name: str, options: dict[str, Any], num_classes: int, checkpoint: str
) -> nn.Module:
    """Build the model with these weights; a classifier of another size is initialized."""
    file = find_weights(checkpoint)
    shapes = shapes_in(file)
    heads = _classifiers(name)
    saved = next((shapes[f"{h}.weight"][0] for h in heads if f"{h}.weight" in shapes), num_classes)
    overlay = {"file": str(file), "custom_load": False, "num_classes": saved}
    model = timm.create_model(name, **options)
    options = {**options, "pretrained": True, "num_classes": saved}
    try:
        # timm loads all or nothing only where the numbers of classes agree
        loaded = timm.create_model(name, pretrained_cfg_overlay=overlay, **options)
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        text = misfit(shapes, model, heads) or " ".join(str(error).split())
        raise RecipeError(f"{checkpoint} does not fit {name}: {text}") from None
    if saved == num_classes:
        return loaded
    body = {key: x for key, x in loaded.state_dict().items() if not is_of(key, heads)}
    model.load_state_dict(body, strict=False)
    return model


def _classifiers(name: str) -> tuple[str, ...]:
    found = getattr(get_pretrained_cfg(name), "classifier", None) or ()
    return (found,) if isinstance(found, str) else tuple(found)


def _has_fixed_size(name: str) -> bool:
    """Return whether timm's constructor wants to know the size of the images."""
    source, identity = parse_model_name(name)
    if source == "local-dir":
        try:
            return bool(load_model_config_from_path(identity)[0].get("fixed_input_size"))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RecipeError(f"{name} is no model that timm can load: {error!r:.200}") from None
    return bool(getattr(get_pretrained_cfg(name), "fixed_input_size", False))


def _data_config(recipe: Recipe) -> dict[str, Any]:
    """Return the entries of timm's data config that a recipe sets."""
    names = ("interpolation", "crop_pct", "mean", "std")
    return {name: getattr(recipe, name) for name in names if getattr(recipe, name) is not None}


def _plain(config: Any) -> dict[str, Any]:
    return dict(config) if isinstance(config, dict) else config.to_dict()
