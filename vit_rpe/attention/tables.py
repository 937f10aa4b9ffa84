"""Samples sorted by the table that masks them: how the compiled paths see leading dims."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class Tables:
    """Leading dims of q, k and v, split into T tables and S samples that share one.

    `masks` are the leading dims of the mask, which broadcast against `lead`.
    """

    def __init__(self, lead: torch.Size, masks: torch.Size):
        sizes = [1] * (len(lead) - len(masks)) + list(masks)
        own = [dim for dim, size in enumerate(sizes) if size > 1]
        shared = [dim for dim, size in enumerate(sizes) if size == 1]
        self._order = [*own, *shared]
        self._lead = [lead[dim] for dim in self._order]
        self._shape = [prod(lead[dim] for dim in dims) for dims in (own, shared)]

    def split(self, x: Tensor) -> Tensor:
        """(..., L, C) -> (T, S, L, C)."""
        return x.permute(*self._order, -2, -1).reshape(*self._shape, *x.shape[-2:])

    def join(self, x: Tensor) -> Tensor:
        """(T, S, L, C) -> (..., L, C)."""
        back = [self._order.index(dim) for dim in range(len(self._order))]
        return x.reshape(*self._lead, *x.shape[-2:]).permute(*back, -2, -1)


def neighbours(x: Tensor) -> Tensor:
    """The same tensor, with the numbers of a row next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
