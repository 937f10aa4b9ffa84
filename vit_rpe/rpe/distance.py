"""One weight per distance: the paper's definition of a d-dimensional RPE (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.masks import Toeplitz

from .base import GridRPE, grid_distance, hide_later_keys
from .resize import resample


class DistanceRPE(GridRPE):
    """A learned f of the L1 distance on the grid: `M[i, j] = f_h(|i_1 - j_1| + ... + |i_d - j_d|)`.

    Parameters: num_heads * (1 + the longest distance). Another grid keeps f as a function of the
    distance relative to the longest one.
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
        self.table = nn.Parameter(
            torch.empty(num_heads, _distances(self.grid), device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        distance = torch.arange(_distances(self.grid))
        with torch.no_grad():
            self.table.copy_(self._start(-self._slopes()[:, None] * distance))

    def forward(self, grid: Sequence[int] | None = None) -> Toeplitz:
        grid = self._grid(grid)
        weight = self._weight(self._resampled(grid))
        offsets = weight[:, grid_distance(grid, weight.device)]
        offsets = hide_later_keys(offsets, grid, self.one_sided)
        return Toeplitz(offsets, grid, nonnegative=True)

    def resample_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if "table" not in state:
            return state
        table, size = state["table"], self.table.shape[-1]
        if self.crop_axes and table.shape[-1] != size:
            raise ValueError(
                f"a table of {table.shape[-1]} distances does not tell how many frames it is for; "
                "load it into a model of its own size, then call set_input_size"
            )
        return {"table": resample(table, size)}

    def resize(self, grid: Sequence[int]) -> None:
        grid = self._grid(grid)
        if grid != self.grid:
            self.table = nn.Parameter(self._resampled(grid).detach(), self.table.requires_grad)
            self.grid = grid

    def _resampled(self, grid: tuple[int, ...]) -> Tensor:
        kept = tuple(
            min(own, n) if axis in self.crop_axes else own
            for axis, (own, n) in enumerate(zip(self.grid, grid, strict=True))
        )
        return resample(self.table[:, : _distances(kept)].contiguous(), _distances(grid))


def _distances(grid: tuple[int, ...]) -> int:
    return sum(n - 1 for n in grid) + 1
