"""A table of time times a table of space: the cheaper mask for video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vit_rpe.masks import Toeplitz

from .base import GridRPE
from .offset import OffsetRPE


class FactorizedRPE(GridRPE):
    """The first axis times the others, of rank one: `M[i, j] = time_h(i_1 - j_1) space_h(rest)`.

    Parameters: num_heads * ((2 n_1 - 1) + prod(2 n - 1) of the other axes), where `OffsetRPE` has
    their product. The mask is block-Toeplitz as any other table.
    """

    def __init__(
        self,
        grid: Sequence[int],
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ):
        super().__init__(grid, num_heads, **options)
        if len(self.grid) < 2:
            raise ValueError(f"FactorizedRPE needs 2 axes or more, got the grid {self.grid}")
        (first, *_), rest = self.grid, self.grid[1:]
        options |= {"device": device, "dtype": dtype}
        time_axes, space_axes = (
            {
                name: tuple(a - shift for a in getattr(self, name) if (a == 0) == (shift == 0))
                for name in ("one_sided", "crop_axes")
            }
            for shift in (0, 1)
        )
        self.time = OffsetRPE((first,), num_heads, **{**options, **time_axes})
        self.space = OffsetRPE(rest, num_heads, **{**options, **space_axes})

    def reset_parameters(self) -> None:
        self.time.reset_parameters()
        self.space.reset_parameters()

    def forward(self, grid: Sequence[int] | None = None) -> Toeplitz:
        grid = self._grid(grid)
        time, space = self.time(grid[:1]).offsets, self.space(grid[1:]).offsets
        table = time[(..., *[None] * (len(grid) - 1))] * space[:, None]
        return Toeplitz(table, grid, nonnegative=True)

    def resize(self, grid: Sequence[int]) -> None:
        self.grid = self._grid(grid)
        self.time.resize(self.grid[:1])
        self.space.resize(self.grid[1:])
