"""Samples grouped by the table that masks them: how the compiled forms see leading dims."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class TableGroups:
    """Leading dims of q, k and v, split into T tables and S samples that share one.

    `masks` are the leading dims of the mask, which broadcast against `batch_shape`.
    """

    def __init__(self, batch_shape: torch.Size, masks: torch.Size):
        sizes = [1] * (len(batch_shape) - len(masks)) + list(masks)
        own = [dim for dim, size in enumerate(sizes) if size > 1]
        shared = [dim for dim, size in enumerate(sizes) if size == 1]
        self._order = [*own, *shared]
        self._batch_shape = [batch_shape[dim] for dim in self._order]
        self._shape = [prod([batch_shape[dim] for dim in dims]) for dims in (own, shared)]

    def split(self, x: Tensor) -> Tensor:
        """(..., L, C) -> (T, S, L, C)."""
        return x.permute(*self._order, -2, -1).reshape(*self._shape, *x.shape[-2:])

    def join(self, x: Tensor) -> Tensor:
        """(T, S, L, C) -> (..., L, C)."""
        back = [self._order.index(dim) for dim in range(len(self._order))]
        return x.reshape(*self._batch_shape, *x.shape[-2:]).permute(*back, -2, -1)
