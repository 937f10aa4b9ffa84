"""What masks made from graphs share."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor

from vit_rpe.masks import Mask


class GraphMask(Mask):
    """A mask made from a graph: what was worked out from the graph stays, its values may change.

    The constructor looks at the graph itself, values and all, so it belongs before training; in a
    forward pass `with_values` puts the learned values into a mask that is there, at no cost.
    Products and entries are computed with autocast off: there is no sparse product in bfloat16.
    """

    by_rows = True
    _prepared: Any = None
    """What `prepared` has worked out from the values."""

    def __init_subclass__(cls) -> None:
        for name in ("matmul", "dense", "rows"):
            setattr(cls, name, _full_precision(getattr(cls, name)))

    def with_values(self, **values: float | Tensor) -> Self:
        """A mask on the same graph with other values: `mask.with_values(lam=self.lam)`."""
        mask = copy(self)
        for name, value in values.items():
            if name not in self.tensor_names:
                known = ", ".join(self.tensor_names)
                raise ValueError(f"{type(self).__name__} has values {known}, got {name!r}")
            setattr(mask, name, as_values(value, name))
        mask._prepared = None
        mask.check_shapes()
        return mask

    def check_shapes(self) -> None:
        """Raise ValueError if the values do not fit the graph."""


def _full_precision(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(method)
    def without_autocast(self: GraphMask, *args: Any) -> Tensor:
        device = next(iter(self.tensors().values())).device.type
        with torch.autocast(device, enabled=False):
            return method(self, *args)

    return without_autocast


def as_values(value: float | Tensor, name: str) -> Tensor:
    """A number becomes float64, so that no digit of it is lost; a real tensor stays as it is."""
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a number or a real tensor, got {got}")
    return value


class Folded:
    """Columns (..., L, C) as (H..., L, B C): leading dims that the mask does not know are columns.

    A mask without heads then multiplies two-dimensional matrices, however many samples there are.
    """

    def __init__(self, x: Tensor, lead: torch.Size):
        self.full = torch.broadcast_shapes(x.shape[:-2], lead)
        n = len(self.full)
        lead = torch.Size([1] * (n - len(lead)) + list(lead))
        self.own = [i for i in range(n) if lead[i] > 1]
        self.others = [i for i in range(n) if lead[i] == 1]
        self.order = [*self.own, n, *self.others, n + 1]
        x = x.expand(*self.full, *x.shape[-2:]).permute(self.order)
        self.tail = x.shape[len(self.own) + 1 :]
        self.columns = x.reshape(*x.shape[: len(self.own) + 1], -1)

    def values(self, value: Tensor, own_dims: int = 0) -> Tensor:
        """A value of the mask, (lead..., own dims), without its leading dims of size 1."""
        shape = value.shape[value.ndim - own_dims :]
        lead = value.shape[: value.ndim - own_dims]
        full = [1] * (len(self.full) - len(lead)) + list(lead)
        return value.reshape([*(full[i] for i in self.own), *shape])

    def unfold(self, result: Tensor) -> Tensor:
        """Columns of the result, back in their places."""
        result = result.reshape(*result.shape[:-1], *self.tail)
        inverse = [self.order.index(i) for i in range(len(self.order))]
        return result.permute(inverse)
