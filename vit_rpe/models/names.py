"""Names of RPE modules that timm, recipes and command lines use; features/names.py has the maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vit_rpe.features import choose
from vit_rpe.rpe import (
    CausalRPE,
    DistanceRPE,
    ExponentialRPE,
    FactorizedRPE,
    GridRPE,
    OffsetRPE,
)

RPES: dict[str, Callable[..., GridRPE]] = {
    "offset": OffsetRPE,
    "distance": DistanceRPE,
    "exponential": ExponentialRPE,
}
VIDEO_RPES: dict[str, Callable[..., GridRPE]] = {**RPES, "factorized": FactorizedRPE}


def make_rpe(
    name: str, grid: Sequence[int], num_heads: int, terms: int = 1, **options: Any
) -> GridRPE | None:
    if name == "none":  # nothing is learned, but later tokens may have to be hidden
        return CausalRPE(grid, num_heads, **options) if options.get("one_sided") else None
    choices = VIDEO_RPES if len(grid) == 3 else RPES
    make = choose("rpe", name, {**choices, "none": OffsetRPE})
    if name == "exponential":
        return make(grid, num_heads, terms=terms, **options)
    if terms != 1:
        raise ValueError(f"rpe_terms={terms} has no meaning for rpe={name!r}, only for exponential")
    return make(grid, num_heads, **options)
