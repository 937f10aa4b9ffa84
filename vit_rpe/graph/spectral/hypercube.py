"""The diffusion kernel of hypercubes, by its closed form (paper, Sec. 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import as_count, as_values, block_width, check_columns, check_rows
from vit_rpe.precision import full_precision

from ..base import GraphMask


class Hypercube(GraphMask):
    """The kernel `exp(-lam L)` of the hypercube of 2^dim nodes (Sec. 4.1). O(L log L) a column.

        M[i, j] = ((1 + e)/2)^(dim - h) ((1 - e)/2)^h,    e = exp(-2 lam),  h = bits that differ

    which is proportional to tanh(lam)^h: a Kronecker product, applied bit by bit.
    """

    tensor_names = ("lam",)

    def __init__(self, dim: int, lam: float | Tensor = 1.0, *, nonnegative: bool = False):
        self.dim = as_count(dim, "dim", least=0)
        self.length = 2**dim
        self.lam = as_values(lam, "lam")
        self.absolute = False
        self.nonnegative = nonnegative

    @property
    def batch_shape(self) -> torch.Size:
        return self.lam.shape

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return the weights of a bit that agrees and of one that differs."""
        e = torch.expm1(-2 * self.lam)
        return 1 + e / 2, e.abs() / 2 if self.absolute else -e / 2

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = self.compute_dtype(x.dtype)
        width = block_width(self.length, x)
        result = torch.cat([self._bits(part.to(dtype)) for part in x.split(width, -1)], -1)
        return result.expand(torch.broadcast_shapes(result.shape, (*self.batch_shape, 1, 1))).to(
            x.dtype
        )

    def _bits(self, x: Tensor) -> Tensor:
        same, other = (f.to(x.dtype)[..., None, None, None, None] for f in self._factors())
        for bit in range(self.dim):
            pairs = x.unflatten(-2, (-1, 2, 1 << bit))
            x = (same * pairs + other * pairs.flip(-3)).flatten(-4, -2)
        return x

    @full_precision
    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        nodes = torch.arange(self.length, device=self.lam.device)
        different = nodes[start:stop, None] ^ nodes
        bits = sum((different >> bit & 1 for bit in range(self.dim)), torch.zeros_like(different))
        same, other = (f[..., None, None] for f in self._factors())
        return same ** (self.dim - bits) * other**bits

    def cost(self, columns: int) -> float:
        return 4.0 * max(self.dim, 1) * self.length * columns

    def abs_bound(self) -> Mask:
        """The mask |M|; only a negative lam makes entries negative."""
        mask = self.with_values(lam=self.lam.detach())
        mask.absolute = True
        return mask
