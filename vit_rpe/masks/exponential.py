"""Masks that decay exponentially with the offset on a grid: linear time, no FFT."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from .base import Mask, as_axes, as_grid, check_columns, grid_coordinates
from .toeplitz import Toeplitz

# An axis up to this long is one matrix product; a longer one is cut into blocks of this length.
_BLOCK = 128


class Exponential(Mask):
    """A sum of R exponentials of the offset between query and key, f(z) = exp(affine z) per term.

        M[i, j] = sum_r weights[..., r] * exp(-sum_a rates[..., r, a] * |i_a - j_a|)

    `weights` is (..., R); `rates` is (..., R), shared by the axes, or (..., R, d). Along the axes
    in `one_sided` a query sees only keys at its own cell or before: the rest are structural zeros.
    `nonnegative` promises that no weight is negative.

    Each term is a Kronecker product over the axes: the product costs at most 128 multiply-adds per
    entry, axis and term, however long the axis.
    """

    tensor_names = ("rates", "weights")
    signed_names = ("rates",)

    def __init__(
        self,
        rates: Tensor,
        weights: Tensor,
        grid: Sequence[int],
        one_sided: Sequence[int] = (),
        *,
        nonnegative: bool = False,
    ):
        self.grid = as_grid(grid)
        self.one_sided = as_axes(one_sided, self.grid)
        self.length = prod(self.grid)
        self.row_block = prod(self.grid[1:])
        d = len(self.grid)
        if weights.ndim < 1 or weights.shape[-1] < 1:
            raise ValueError(
                f"Exponential needs weights of shape (..., terms), got {tuple(weights.shape)}"
            )
        if rates.ndim == weights.ndim:
            rates = rates[..., None].expand(*rates.shape, d)
        if (
            rates.ndim != weights.ndim + 1
            or rates.shape[-1] != d
            or rates.shape[-2] != weights.shape[-1]
        ):
            raise ValueError(
                f"weights {tuple(weights.shape)} on a {self.grid} grid need rates ending in "
                f"({weights.shape[-1]},) or ({weights.shape[-1]}, {d}), got {tuple(rates.shape)}"
            )
        self.rates = rates
        self.weights = weights
        self.nonnegative = nonnegative

    @property
    def terms(self) -> int:
        return self.weights.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(self.rates.shape[:-2], self.weights.shape[:-1])

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = torch.promote_types(self.compute_dtype(x.dtype), self.rates.dtype)
        columns = x.to(dtype)
        total = sum(
            self.weights[..., term, None, None].to(dtype)
            * spread(columns, self.rates[..., term, :].to(dtype), self.grid, self.one_sided)
            for term in range(self.terms)
        )
        assert isinstance(total, Tensor)
        return total.to(x.dtype)

    def dense(self) -> Tensor:
        cell = grid_coordinates(self.grid, self.rates.device)
        offset = cell[:, None] - cell[None, :]
        exponent = torch.einsum("...ra,ija->...rij", self.rates, offset.abs().to(self.rates.dtype))
        matrix = torch.einsum("...r,...rij->...ij", self.weights, (-exponent).exp())
        for axis in self.one_sided:
            matrix = matrix.masked_fill(offset[..., axis] < 0, 0.0)
        return matrix

    def rows(self, start: int, stop: int) -> Tensor:
        return self.toeplitz().rows(start, stop)

    def toeplitz(self) -> Toeplitz:
        """Return this mask as a table of offsets."""
        d = len(self.grid)
        table = self.weights[(..., *[None] * d)]
        for axis, n in enumerate(self.grid):
            offset = torch.arange(1 - n, n, device=self.rates.device)
            factor = (-self.rates[..., axis, None] * offset.abs()).exp()
            if axis in self.one_sided:
                factor = factor.masked_fill(offset < 0, 0.0)
            table = table * factor[(..., *[None] * axis, slice(None), *[None] * (d - 1 - axis))]
        return Toeplitz(table.sum(-d - 1), self.grid, nonnegative=self.nonnegative)

    def cost(self, columns: int) -> float:
        return columns * self.length * self.terms * sum(min(n, 2 * _BLOCK) for n in self.grid)

    def abs_bound(self) -> Mask:
        return Exponential(
            self.rates.detach(),
            self.weights.detach().abs(),
            self.grid,
            self.one_sided,
            nonnegative=True,
        )


def spread(
    x: Tensor, rates: Tensor, grid: tuple[int, ...], one_sided: Sequence[int] = ()
) -> Tensor:
    """One term with weight 1: the decay along every axis of the grid in turn.

    x is (..., L, C), rates (..., d).
    """
    columns = x.shape[-1]
    for axis, n in enumerate(grid):
        x = x.unflatten(-2, (prod(grid[:axis]), n, prod(grid[axis + 1 :]))).flatten(-2)
        x = decay(x, rates[..., axis, None], axis in one_sided)
        x = x.unflatten(-1, (-1, columns)).flatten(-4, -2)
    return x


def decay(x: Tensor, rate: Tensor, one_sided: bool) -> Tensor:
    """sum_j exp(-rate |i - j|) x[j] along one axis: (..., n, C) -> (..., n, C), rate (...).

    A long axis is cut into blocks; what a block sends to the later ones is a sum that decays with
    the number of blocks, which is the same problem on a shorter axis. No exponent is ever positive
    for a rate that is not negative.
    """
    n = x.shape[-2]
    if n <= _BLOCK:
        offset = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        kernel = (-rate[..., None, None] * offset.abs()).exp()
        return (kernel.masked_fill(offset < 0, 0.0) if one_sided else kernel) @ x
    pad = -n % _BLOCK
    blocks = torch.nn.functional.pad(x, (0, 0, 0, pad)).unflatten(-2, (-1, _BLOCK))
    result = decay(blocks, rate[..., None], one_sided) + _from_earlier_blocks(blocks, rate)
    if not one_sided:
        result = result + _from_earlier_blocks(blocks.flip(-3, -2), rate).flip(-3, -2)
    return result.flatten(-3, -2)[..., :n, :]


def _from_earlier_blocks(blocks: Tensor, rate: Tensor) -> Tensor:
    """The sums of each entry over the blocks before its own: (..., blocks, b, C)."""
    b = blocks.shape[-2]
    entry = torch.arange(b, device=blocks.device)
    to_end = (-rate[..., None] * (b - 1 - entry)).exp()
    from_end = (-rate[..., None] * (entry + 1)).exp()
    sent = torch.einsum("...j,...bjc->...bc", to_end, blocks)
    arrived = shift_down(decay(sent, rate * b, one_sided=True))
    return from_end[..., None, :, None] * arrived[..., None, :]


def shift_down(x: Tensor) -> Tensor:
    """Entry i becomes entry i - 1 along the axis before the last; the first becomes zero."""
    return torch.nn.functional.pad(x, (0, 0, 1, 0))[..., :-1, :]
