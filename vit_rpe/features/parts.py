"""Scales of keys that are in parts of which no token sees another."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_of_parts(x: Tensor, parts: Tensor) -> Tensor:
    """The largest number in the part that each token is in: (..., L, 1), (L,) -> (..., L, 1)."""
    _, place = torch.unique(parts, return_inverse=True)
    place = place[:, None].expand(x.shape)
    return torch.full_like(x, -torch.inf).scatter_reduce(-2, place, x, "amax").gather(-2, place)
