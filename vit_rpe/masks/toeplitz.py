"""d-level block-Toeplitz masks on a grid of tokens (paper, Sec. 3.2), multiplied by FFT."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, lru_cache
from math import log2, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.precision import has_float64, is_readable

from .base import Mask, as_grid, check_columns, check_rows, grid_coordinates
from .compose import Scaled
from .elementary import Ones

# A float32 FFT errs by about 2e-7 * max|M| * |x|_2 in every row. Rows whose own entries sum to
# less than this times max|M| * sqrt(L) would lose more than 1e-4 of their value: such tables take
# float64.
_NARROW_ROW = 2e-3


class Toeplitz(Mask):
    """Weights that depend only on the offset between query and key.

    On a grid of any number of axes d: 1 for a sequence, 2 for an image, 3 for a video.

        M[i, j] = offsets[..., i_1 - j_1 + n_1 - 1, ..., i_d - j_d + n_d - 1]

    for tokens at the cells i and j of a grid, in row-major order. `offsets` is (..., 2 n_1 - 1,
    ..., 2 n_d - 1); `nonnegative` promises that none is negative. The product is a convolution:
    O(L log L) a column, by FFTs that are pruned axis by axis.
    """

    normwise = True
    tensor_names = ("offsets",)

    def __init__(self, offsets: Tensor, grid: Sequence[int], *, nonnegative: bool = False):
        self.grid = as_grid(grid)
        sides = tuple(2 * n - 1 for n in self.grid)
        if tuple(offsets.shape[-len(sides) :]) != sides:
            raise ValueError(
                f"a {self.grid} grid needs offsets ending in {sides}, got {tuple(offsets.shape)}"
            )
        self.length = prod(self.grid)
        self.row_block = prod(self.grid[1:])
        self.offsets = offsets
        self.nonnegative = nonnegative
        self._spectrum: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        return self.offsets.shape[: -len(self.grid)]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = self.compute_dtype(x.dtype)
        spectrum = self._spectrum if self._spectrum is not None else self._transform(dtype)
        return _convolve(spectrum, x.to(dtype), self.grid).to(x.dtype)

    def precomputed(self, dtype: torch.dtype) -> Toeplitz:
        """Return this mask with the transform of its table, in the precision that it asks for."""
        mask = copy(self)
        mask._spectrum = self._transform(self.compute_dtype(dtype))
        return mask

    def _transform(self, dtype: torch.dtype) -> Tensor:
        spectrum = _transform(self.offsets.to(dtype), self.grid)
        first = -len(self.grid)
        # the memory layout of the spectra that it multiplies: they are transformed last along it
        return spectrum.movedim(first, -1).contiguous().movedim(-1, first)

    def dense(self) -> Tensor:
        cells = grid_coordinates(self.grid, self.offsets.device).unbind(-1)
        places = [x[:, None] - x + n - 1 for x, n in zip(cells, self.grid, strict=True)]
        return self.offsets[(..., *places)]

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        spans = covering_spans(self.grid, start, stop)
        d = len(self.grid)
        slab = windows(self.offsets, self.grid, spans).flip([axis - d for axis in range(d)])
        first = sum(span[0] * prod(self.grid[axis + 1 :]) for axis, span in enumerate(spans))
        return slab.flatten(-d).flatten(-d - 1, -2).narrow(-2, start - first, stop - start)

    def cost(self, columns: int) -> float:
        return columns * sum(
            2.5 * size * log2(max(n, 2)) for size, n in _transform_sizes(self.grid)
        )

    def abs_bound(self) -> Mask:
        """max|M| in every entry: the error of an FFT does not know which row it falls into."""
        largest = self.offsets.detach().abs().flatten(-len(self.grid)).amax(-1)
        return Scaled(
            Ones(self.length, largest.device),
            left=largest[..., None].expand(*largest.shape, self.length),
        )

    def precise(self) -> Toeplitz:
        return Toeplitz(self.offsets.double(), self.grid, nonnegative=self.nonnegative)

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        dtype = torch.promote_types(super().compute_dtype(dtype), self.offsets.dtype)
        return torch.float64 if dtype == torch.float32 and self._has_faint_rows else dtype

    @cached_property
    def _has_faint_rows(self) -> bool:
        """Whether float32 round-off, which follows max|M|, would show in the smallest row.

        Where the table cannot be read without waiting for it, the answer is the safe one.
        """
        if not is_readable(self.offsets):
            return has_float64(self.offsets.device)
        table = self.offsets.detach().to(torch.float64).abs()
        ones = table.new_ones(self.length, 1)
        row_sums = _convolve(_transform(table, self.grid), ones, self.grid).squeeze(-1)
        largest = table.flatten(-len(self.grid)).amax(-1, keepdim=True)
        return bool((row_sums < _NARROW_ROW * sqrt(self.length) * largest).any())


def windows(offsets: Tensor, grid: tuple[int, ...], spans: Sequence[tuple[int, int]]) -> Tensor:
    """The rows of queries at the cells `spans`, as a view: (..., r_1, ..., r_d, n_1, ..., n_d).

    A row of M is a window of the table, its keys in reverse order along every axis; `spans` are the
    first cell and the one after the last of the queries, axis by axis.
    """
    d = len(grid)
    for axis, (n, (first, last)) in enumerate(zip(grid, spans, strict=True)):
        offsets = offsets.narrow(axis - d, first, last - first + n - 1)
    for n in grid:
        offsets = offsets.unfold(-d, n, 1)
    return offsets


def covering_spans(grid: tuple[int, ...], start: int, stop: int) -> list[tuple[int, int]]:
    """The smallest box of whole slices of the grid that holds the tokens from start to stop."""
    spans, stride, whole = [], prod(grid), False
    for n in grid:
        stride //= n
        first, last = (0, n) if whole else (start // stride, (stop - 1) // stride + 1)
        start, stop = start - first * stride, stop - first * stride
        whole = whole or last - first > 1
        spans.append((first, last))
    return spans


def _transform(offsets: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The spectrum of a table, (..., s_1, ..., s_d / 2 + 1), offset zero at the origin."""
    axes = [axis - len(grid) for axis in range(len(grid))]
    sizes = [fast_size(2 * n - 1) for n in grid]
    padding = [size - 2 * n + 1 for n, size in zip(grid, sizes, strict=True)]
    offsets = F.pad(offsets, [side for pad in reversed(padding) for side in (0, pad)])
    return torch.fft.rfftn(offsets.roll([1 - n for n in grid], axes), dim=axes)


def _convolve(table: Tensor, x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """sum_j offsets[i - j + n - 1] x[j], by the spectrum of the table: (..., L, C) -> (..., L, C).

    Each axis is transformed only over the cells of the others that are not padding, and is cropped
    as soon as it has been transformed back. Columns that are neighbours in memory are not copied.
    """
    d = len(grid)
    sizes = [fast_size(2 * n - 1) for n in grid]
    axes = [axis - d for axis in range(d)]
    columns_first = x.mT.unflatten(-1, grid)
    spectrum = torch.fft.rfft(columns_first, n=sizes[-1], dim=-1)
    for axis in reversed(axes[:-1]):
        spectrum = torch.fft.fft(spectrum, n=sizes[axis], dim=axis)
    spectrum = spectrum * table.unsqueeze(-d - 1)
    for axis in axes[:-1]:
        spectrum = torch.fft.ifft(spectrum, dim=axis).narrow(axis, 0, grid[axis])
    result = torch.fft.irfft(spectrum, n=sizes[-1], dim=-1).narrow(-1, 0, grid[-1])
    return result.flatten(-d).mT


@lru_cache(maxsize=256)  # asked for in every plan
def _transform_sizes(grid: tuple[int, ...]) -> list[tuple[int, int]]:
    """(points, length) of the transforms of one column, there and back."""
    sizes = [fast_size(2 * n - 1) for n in grid]
    transforms = [(prod(grid[:-1]) * sizes[-1], sizes[-1])]
    for axis in range(len(grid) - 2, -1, -1):
        transforms.append((prod(grid[:axis]) * prod(sizes[axis:]), sizes[axis]))
    return transforms * 2


def fast_size(n: int) -> int:
    """The smallest size >= n whose only prime factors are 2, 3, 5 and 7: FFTs of these are fast."""
    while True:
        rest = n
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return n
        n += 1
