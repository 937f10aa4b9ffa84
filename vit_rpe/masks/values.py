"""Checks of the numbers and tensors that masks are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def as_values(value: float | Tensor, name: str) -> Tensor:
    """Turn a number into float64, so that it loses no digits; leave a real tensor as it is."""
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a number or a real tensor, got {got}")
    return value


def widest_dtype(dtype: torch.dtype, *values: Tensor) -> torch.dtype:
    """Promote a dtype by those of the values.

    Python numbers do not raise the precision; tensors with dims do.
    """
    for value in values:
        if value.ndim:
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def as_count(value: int, name: str, least: int | None = None) -> int:
    """Return a whole number that is at least `least`; raise ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def as_probability(value: float, name: str) -> float:
    """Return a number from 0 to 1 as a float; raise ValueError for anything else."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability, from 0 to 1, got {value!r}")
    return float(value)
