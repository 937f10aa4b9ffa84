"""Names of feature maps, for timm, recipes, command lines and GKATConv: the only registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from .additive import AdditiveFeatures
from .base import FeatureMap
from .elementwise import ELUFeatures, ReLUFeatures, SquareFeatures
from .favor import HyperbolicRandomFeatures, PositiveRandomFeatures

T = TypeVar("T")

# One feature per channel.
ELEMENTWISE: dict[str, Callable[..., FeatureMap]] = {
    "relu": ReLUFeatures,
    "elu": ELUFeatures,
    "square": SquareFeatures,
}
# `num_features` random ones.
RANDOM: dict[str, Callable[..., FeatureMap]] = {
    "favor": PositiveRandomFeatures,
    "favor_hyperbolic": HyperbolicRandomFeatures,
}
# Two features of queries and keys that are single numbers, as GKATConv makes them.
ADDITIVE: dict[str, Callable[..., FeatureMap]] = {"additive": AdditiveFeatures}
ALIASES = {"softmax": "favor"}


def choose(what: str, name: str, choices: Mapping[str, T]) -> T:
    """Look up the choice of that name; raise ValueError that lists all of them."""
    if name not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}; got {name!r}")
    return choices[name]


def is_random(name: str) -> bool:
    """Tell whether the feature map of this name draws `num_features` features."""
    return ALIASES.get(name, name) in RANDOM


def make_features(
    name: str,
    head_dim: int,
    num_features: int | None = None,
    unit_norm: bool = False,
    device: torch.device | str | None = None,
    *,
    additive: bool = False,
) -> FeatureMap:
    """Make the feature map of this name, for heads of `head_dim` channels.

    `additive` maps take queries and keys of one number; only a caller that makes these allows them.
    """
    maps = {**ELEMENTWISE, **RANDOM, **(ADDITIVE if additive else {})}
    maps |= {alias: maps[target] for alias, target in ALIASES.items()}
    make = choose("feature_map", name, maps)
    if is_random(name):
        return make(head_dim, num_features, unit_norm=unit_norm, device=device)
    if num_features is not None:
        raise ValueError(
            f"num_features={num_features} has no meaning for feature_map={name!r}, "
            f"which has a fixed number of features; only {', '.join(RANDOM)} draw some"
        )
    return make() if name in ADDITIVE else make(unit_norm=unit_norm)
