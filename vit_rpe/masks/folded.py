"""Leading dims that a mask does not know, as columns of its product."""

from __future__ import annotations

import torch
from torch import Tensor


class Folded:
    """Columns (..., L, C) as (H..., L, B C): leading dims that the mask does not have are columns.

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
        """Reshape a value of the mask, (lead..., own dims), to drop leading dims of size 1."""
        shape = value.shape[value.ndim - own_dims :]
        lead = value.shape[: value.ndim - own_dims]
        full = [1] * (len(self.full) - len(lead)) + list(lead)
        return value.reshape([*(full[i] for i in self.own), *shape])

    def unfold(self, result: Tensor) -> Tensor:
        """Bring columns of the result back to the leading dims of x."""
        result = result.reshape(*result.shape[:-1], *self.tail)
        inverse = [self.order.index(i) for i in range(len(self.order))]
        return result.permute(inverse)
