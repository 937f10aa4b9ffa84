"""What masks made from graphs share."""

from __future__ import annotations

from copy import copy
from typing import Self

import torch
from torch import Tensor

from vit_rpe.masks import Mask


class GraphMask(Mask):
    """A mask made from a graph: what was worked out from the graph stays, its values may change.

    The constructor looks at the graph itself, values and all, so it belongs before training; in a
    forward pass `with_values` puts the learned values into a mask that is there, at no cost.
    """

    def with_values(self, **values: float | Tensor) -> Self:
        """A mask on the same graph with other values: `mask.with_values(lam=self.lam)`."""
        mask = copy(self)
        for name, value in values.items():
            if name not in self.tensor_names:
                known = ", ".join(self.tensor_names)
                raise ValueError(f"{type(self).__name__} has values {known}, got {name!r}")
            setattr(mask, name, as_values(value))
        mask.check_shapes()
        return mask

    def check_shapes(self) -> None:
        """Raise ValueError if the values do not fit the graph."""


def as_values(value: float | Tensor) -> Tensor:
    """A number becomes float64, so that no digit of it is lost; a tensor stays as it is."""
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


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
