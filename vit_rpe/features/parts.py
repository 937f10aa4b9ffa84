"""Scales of keys in parts of the tokens that do not see each other."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_of_parts(x: Tensor, parts: Tensor) -> Tensor:
    """Find the largest number of each token's part: (..., L, 1), (L,) -> (..., L, 1)."""
    _, part = torch.unique(parts, return_inverse=True)
    part = part[:, None].expand(x.shape)
    return torch.full_like(x, -torch.inf).scatter_reduce(-2, part, x, "amax").gather(-2, part)
