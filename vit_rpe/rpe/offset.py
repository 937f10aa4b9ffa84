"""One weight per offset: the general d-level block-Toeplitz mask (what TopViT trains)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.masks import Toeplitz

from .base import GridRPE, grid_distance, hide_later_keys
from .resize import resample_offsets


class OffsetRPE(GridRPE):
    """A full table of offsets for each head: `M[i, j] = weight(table[h, i - j + n - 1])`.

    Parameters: num_heads * prod(2 n - 1).
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
        sides = [2 * n - 1 for n in self.grid]
        self.table = nn.Parameter(torch.empty(num_heads, *sides, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        distance = grid_distance(self.grid).expand(self.num_heads, *[-1] * len(self.grid))
        slopes = self._slopes()[(..., *[None] * len(self.grid))]
        with torch.no_grad():
            self.table.copy_(self._start(-slopes * distance))

    def forward(self, grid: Sequence[int] | None = None) -> Toeplitz:
        grid = self._grid(grid)
        table = resample_offsets(self.table, self.grid, grid, self.crop_axes)
        table = hide_later_keys(self._weight(table), grid, self.one_sided)
        return Toeplitz(table, grid, nonnegative=True)

    def resample_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if "table" not in state:
            return state
        saved = tuple((side + 1) // 2 for side in state["table"].shape[1:])
        return {"table": resample_offsets(state["table"], saved, self.grid, self.crop_axes)}

    def resize(self, grid: Sequence[int]) -> None:
        grid = self._grid(grid)
        if grid != self.grid:
            table = resample_offsets(self.table.detach(), self.grid, grid, self.crop_axes)
            self.table = nn.Parameter(table, self.table.requires_grad)
            self.grid = grid
