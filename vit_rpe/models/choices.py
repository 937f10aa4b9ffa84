"""Names that timm, recipes and command lines use, and the objects that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from vit_rpe.features import (
    ELUFeatures,
    FeatureMap,
    HyperbolicRandomFeatures,
    PositiveRandomFeatures,
    ReLUFeatures,
    SquareFeatures,
)
from vit_rpe.rpe import (
    DistanceRPE,
    ExponentialRPE,
    FactorizedRPE,
    GridRPE,
    OffsetRPE,
    OneSidedRPE,
)

T = TypeVar("T")

ELEMENTWISE: dict[str, Callable[..., FeatureMap]] = {
    "relu": ReLUFeatures,
    "elu": ELUFeatures,
    "square": SquareFeatures,
}
RANDOM: dict[str, Callable[..., FeatureMap]] = {
    "favor": PositiveRandomFeatures,
    "favor_hyperbolic": HyperbolicRandomFeatures,
}
RPES: dict[str, Callable[..., GridRPE]] = {
    "offset": OffsetRPE,
    "distance": DistanceRPE,
    "exponential": ExponentialRPE,
}
VIDEO_RPES: dict[str, Callable[..., GridRPE]] = {**RPES, "factorized": FactorizedRPE}


def choose(what: str, name: str, choices: Mapping[str, T]) -> T:
    """The choice of that name, or an error that lists them all."""
    if name not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}; got {name!r}")
    return choices[name]


def make_features(
    name: str,
    head_dim: int,
    num_features: int | None = None,
    unit_norm: bool = False,
    device: torch.device | str | None = None,
) -> FeatureMap:
    make = choose("feature_map", name, {**ELEMENTWISE, **RANDOM})
    if name in RANDOM:
        return make(head_dim, num_features, unit_norm=unit_norm, device=device)
    if num_features is not None:
        raise ValueError(
            f"num_features={num_features} has no meaning for feature_map={name!r}, "
            f"which has one feature per channel; only {', '.join(RANDOM)} draw some"
        )
    return make(unit_norm=unit_norm)


def make_rpe(
    name: str, grid: Sequence[int], num_heads: int, terms: int = 1, **options: Any
) -> GridRPE | None:
    if name == "none":  # nothing is learned, but later tokens may have to be hidden
        return OneSidedRPE(grid, num_heads, **options) if options.get("one_sided") else None
    choices = VIDEO_RPES if len(grid) == 3 else RPES
    make = choose("rpe", name, {**choices, "none": OffsetRPE})
    if name == "exponential":
        return make(grid, num_heads, terms=terms, **options)
    if terms != 1:
        raise ValueError(f"rpe_terms={terms} has no meaning for rpe={name!r}, only for exponential")
    return make(grid, num_heads, **options)


class TopViTFeatures(ReLUFeatures):
    """relu(q / sqrt d) + 1e-8 and relu(k) + 1e-8: the kernel of the authors' TopViT."""

    def query(self, q: Tensor) -> Tensor:
        return super().query(q * q.shape[-1] ** -0.5) + 1e-8

    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().query(k) + 1e-8
