"""Models from folders with config.json and model.safetensors: what timm calls `local-dir:`.

timm trusts a config.json. Here it is checked against the weights first: timm would replace a head
that does not fit by a new one, and every figure made with it would be random.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError, safe_open
from torch import nn

from ..errors import CheckpointError
from .integrity import WEIGHTS

CONFIG = "config.json"

Shape = Sequence[int]


def load_model(folder: Path, **options: Any) -> tuple[dict[str, Any], nn.Module]:
    """Return the config and the model of a folder; `options` go to timm."""
    config = _config(folder / CONFIG)
    _check_classes(folder, config)
    try:
        return config, timm.create_model(f"local-dir:{folder}", pretrained=True, **options)
    except Exception as error:  # timm, and what a config.json can hold, raise many kinds
        text = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{folder} cannot be built: {text}") from None


def class_names(model: nn.Module) -> list[str]:
    """Return the names of a model's classes, if its checkpoint has them."""
    return list(getattr(model, "pretrained_cfg", {}).get("label_names") or [])


def with_classes(model: Any, names: list[str]) -> Any:
    """Record the number and the names of its classes in a model that is to be saved."""
    known = {"label_names": names} if len(names) == model.num_classes else {}
    model.pretrained_cfg = {**model.pretrained_cfg, "num_classes": model.num_classes, **known}
    return model


def shapes_in(file: Path) -> dict[str, Shape]:
    """Return the shapes of the arrays in a safetensors file, by name, without reading them."""
    try:
        with safe_open(file, framework="pt") as weights:
            return {name: weights.get_slice(name).get_shape() for name in weights.keys()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a safetensors file: {error}") from None


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    kinds = {"architecture": str, "pretrained_cfg": dict, "num_classes": int}
    for name, kind in kinds.items():
        found = config.get(name) if isinstance(config, dict) else None
        if not isinstance(found, kind):
            raise CheckpointError(f"{file}: {name} should be a {kind.__name__}, got {found!r:.60}")
    names = config["pretrained_cfg"].get("label_names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{file}: label_names should be a list of names, got {names!r:.60}")
    return config


def _check_classes(folder: Path, config: dict[str, Any]) -> None:
    shapes = shapes_in(folder / WEIGHTS)
    heads = config["pretrained_cfg"].get("classifier") or ()
    for head in (heads,) if isinstance(heads, str) else heads:
        shape = shapes.get(f"{head}.weight")
        if shape is not None and shape[0] != config["num_classes"]:
            raise CheckpointError(
                f"{folder / CONFIG} says {config['num_classes']} classes, and {WEIGHTS} has "
                f"{shape[0]}"
            )
