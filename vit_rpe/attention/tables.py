"""Tables of masks on a grid as kernels take them: grouped with their samples, with their borders.

Shapes: T tables, S samples that share a table, L tokens, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def border_weights(
    parts: Sequence[Tensor | None], p: int, lead: torch.Size, device: torch.device
) -> Tensor:
    """Row, column and corner of the border of each table, (T, 2 p + p p)."""
    shapes = ((p,), (p,), (p, p))
    weights = [
        (torch.ones(shape, device=device) if part is None else part).expand(*lead, *shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat([x.reshape(prod(lead), -1) for x in weights], 1)


class TableGroups:
    """Samples grouped by the table that masks them: leading dims as T tables and S samples of each.

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
