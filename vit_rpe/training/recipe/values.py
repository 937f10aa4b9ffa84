"""Types of a recipe's values that need more than a range: names, policies, arguments of models.

A wrong value is refused when the recipe is read, before anything is built or forked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Annotated, Any

import timm
import torch
from pydantic import AfterValidator, Field
from timm.optim._optim_factory import list_optimizers

from .nearest import nearest

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Pair = Annotated[list[NonNegative], Field(min_length=2, max_length=2)]
Triple = Annotated[list[NonNegative], Field(min_length=3, max_length=3)]
PositiveTriple = Annotated[list[PositiveNumber], Field(min_length=3, max_length=3)]

Side = Annotated[int, Field(ge=1, le=2**14)]
Frames = Annotated[int, Field(ge=1, le=2**12)]
Epochs = Annotated[int, Field(ge=1, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch's and NumPy's generators take
Betas = Annotated[list[BelowOne], Field(min_length=2, max_length=3)]
NoiseRange = Annotated[list[Fraction], Field(min_length=1, max_length=2)]
CropFraction = Annotated[
    float, Field(ge=0.1, le=2)
]  # a tiny one would enlarge images without bound


# --- names


def _model(name: str) -> str:
    if ":" not in name and not timm.is_model(name.split(".")[0]):
        raise ValueError(f"no model {name!r} in timm{_near(name, timm.list_models())}")
    return name


def _optimizer(name: str) -> str:
    known = [str(each) for each in list_optimizers()]
    if name.lower().removeprefix("lookahead_") not in known:
        raise ValueError(f"no optimizer {name!r} in timm{nearest(name, known)}")
    return name


def _backend(name: str) -> str:
    if name not in torch.compiler.list_backends(exclude_tags=()):
        known = ", ".join(torch.compiler.list_backends())
        raise ValueError(f"torch.compile has no backend {name!r}; there are {known}")
    return name


def _near(name: str, known: Iterable[object]) -> str:
    return nearest(name, [str(each) for each in known])


def _inside(name: str) -> str:
    path = PurePath(name)
    if not path.parts or ".." in path.parts or path.is_absolute():
        raise ValueError(f"a name within output is wanted, got {name!r}")
    return name


ModelName = Annotated[str, AfterValidator(_model)]
RunName = Annotated[str, AfterValidator(_inside)]
OptimizerName = Annotated[str, AfterValidator(_optimizer)]
CompileBackend = Annotated[str, AfterValidator(_backend)]


# --- augmentation

_NUMBER = r"\d+(\.\d+)?"
_POLICIES = (
    rf"rand(-(m\d+|n\d+|p{_NUMBER}|mstd{_NUMBER}|mmax\d+|inc[01]|t[a-z0-9]+))*",
    rf"augmix(-(m\d+|w\d+|d\d+|a{_NUMBER}|b[01]|mstd{_NUMBER}))*",
    rf"(original|originalr|v0|v0r|3a)(-mstd{_NUMBER})?",
    r"trivial",
)
_MOST_OPERATIONS = 32  # on one image


def _policy(text: str) -> str:
    """Refuse a policy that timm does not understand: it would ignore parts of it."""
    if not any(re.fullmatch(pattern, text) for pattern in _POLICIES):
        raise ValueError(
            f"no policy {text!r}; there are rand-m9-n2-mstd0.5-inc1, augmix-m3-w3, original, v0, "
            "3a, trivial and the like"
        )
    for number in re.findall(r"-[nwd](\d+)", text):
        if int(number) > _MOST_OPERATIONS:
            raise ValueError(f"{text}: at most {_MOST_OPERATIONS} operations on an image")
    return text


AugmentationPolicy = Annotated[str, AfterValidator(_policy)]


# --- arguments of models

_ELSEWHERE = {
    "num_classes": "a key of the recipe",
    "pretrained": "a key of the recipe",
    "checkpoint_path": "initial_checkpoint in a recipe",
    "pretrained_cfg": "no argument of a recipe",
    "pretrained_cfg_overlay": "no argument of a recipe",
    "features_only": "no argument of a recipe: a classifier is trained",
}
_LARGEST = {
    "embed_dim": 2**16,
    "depth": 2**10,
    "num_heads": 2**10,
    "patch_size": 2**12,
    "img_size": 2**14,
    "num_frames": 2**12,
    "tubelet_size": 2**8,
    "num_features": 2**16,
    "rpe_terms": 2**8,
}


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        if name in _ELSEWHERE:
            raise ValueError(f"{name} is {_ELSEWHERE[name]}, not one of these arguments")
        if name == "in_chans" and value != 3:
            raise ValueError(f"in_chans is 3, because images are read as RGB, got {value!r}")
        if name in _LARGEST and value is not None:
            _check_sizes(name, value, _LARGEST[name])
    return arguments


def _check_sizes(name: str, value: Any, largest: int) -> None:
    for each in value if isinstance(value, Sequence) else [value]:
        if not isinstance(each, int) or not 1 <= each <= largest:
            raise ValueError(f"{name} is a whole number from 1 to {largest}, got {value!r:.60}")


ModelArguments = Annotated[dict[str, Any], AfterValidator(_arguments)]
