"""The base class of RPE modules: parameters of a grid that make a mask when called."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import as_axes, as_grid

Init = Literal["ones", "decay"]
Positive = Literal["exp", "abs"]

MAX_INIT_SLOPE = 1.5
"""The steepest slope at which a head starts to decay with the distance (`init="decay"`)."""


class GridRPE(nn.Module, abc.ABC):
    """Relative positional weights for a grid of tokens: one mask per head.

    Weights are `exp(gain * parameter)`, or `|gain * parameter|` with `positive="abs"` (TopViT). A
    `gain` above 1 lets a table learn faster than the model's learning rate would.

    `init="ones"` starts every weight at 1, so that a new mask changes nothing. `init="decay"`
    starts head h as exp(-slope_h * distance), the slopes rising from 0: heads from global to local.

    Along the axes in `one_sided` a query sees only keys at its own cell or before.

    Another grid resamples each axis, as if the image had another resolution. Axes in `crop_axes`,
    such as the frames of a video, are cropped instead when they get shorter; when they get longer,
    they are resampled, too.
    """

    def __init__(
        self,
        grid: Sequence[int],
        num_heads: int,
        *,
        gain: float = 1.0,
        init: Init = "ones",
        positive: Positive = "exp",
        one_sided: Sequence[int] = (),
        crop_axes: Sequence[int] = (),
    ):
        super().__init__()
        if init not in ("ones", "decay"):
            raise ValueError(f"init must be 'ones' or 'decay', got {init!r}")
        if positive not in ("exp", "abs"):
            raise ValueError(f"positive must be 'exp' or 'abs', got {positive!r}")
        if num_heads < 1 or not gain > 0:
            raise ValueError(
                f"an RPE needs heads and a gain above 0, got num_heads={num_heads}, gain={gain}"
            )
        self.grid = as_grid(grid)
        self.num_heads = num_heads
        self.gain = gain
        self.init = init
        self.positive = positive
        self.one_sided = as_axes(one_sided, self.grid)
        self.crop_axes = as_axes(crop_axes, self.grid)

    @abc.abstractmethod
    def forward(self, grid: Sequence[int] | None = None) -> Mask:
        """Make the mask, for the module's own grid or resampled to another; write no parameter."""

    @abc.abstractmethod
    def resize(self, grid: Sequence[int]) -> None:
        """Take another grid, keeping the learned function. The module's own grid: a no-op."""

    def resample_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resample the module's parameters, saved on another grid, to its own grid.

        `state` holds those that were saved; what means the same on every grid stays as it is.
        """
        return state

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Go back to the start that `init` names."""

    @torch.no_grad()
    def offset_table(self) -> Tensor:
        """Return the weight of each offset, query minus key: (H, 2 n_1 - 1, ..., 2 n_d - 1).

        The corners of the grid see all offsets there are, each of them those of one orthant.
        """
        mask, axes = self(), range(-len(self.grid), 0)
        sides = [2 * n - 1 for n in self.grid]
        table = torch.zeros(self.num_heads, *sides, device=mask.device)
        for far in product((False, True), repeat=len(self.grid)):
            query = 0
            for end, n in zip(far, self.grid, strict=True):
                query = query * n + (n - 1) * end
            row = mask.rows(query, query + 1)[..., 0, :].unflatten(-1, self.grid)
            ends = zip(far, self.grid, strict=True)
            place = [slice(n - 1, None) if end else slice(0, n) for end, n in ends]
            table[(..., *place)] = row.flip(*axes).to(table)
        return table

    def _grid(self, grid: Sequence[int] | None) -> tuple[int, ...]:
        """Another grid of as many axes, checked; None is the module's own."""
        sides = self.grid if grid is None else as_grid(grid)
        if len(sides) != len(self.grid):
            raise ValueError(
                f"an RPE of a {self.grid} grid has {len(self.grid)} axes, got the grid {sides}"
            )
        return sides

    def _weight(self, parameter: Tensor) -> Tensor:
        scaled = self.gain * parameter
        return scaled.exp() if self.positive == "exp" else scaled.abs()

    def _start(self, log_weight: Tensor) -> Tensor:
        """The parameter whose weight is exp(log_weight)."""
        return (log_weight if self.positive == "exp" else log_weight.exp()) / self.gain

    def _slopes(self) -> Tensor:
        """The slope of each head at the start, (H,)."""
        if self.init == "ones":
            return torch.zeros(self.num_heads)
        return MAX_INIT_SLOPE * (torch.arange(self.num_heads) / max(self.num_heads - 1, 1)) ** 1.5

    def extra_repr(self) -> str:
        return (
            f"grid={self.grid}, num_heads={self.num_heads}, gain={self.gain}, init={self.init!r}, "
            f"positive={self.positive!r}, one_sided={self.one_sided}, crop_axes={self.crop_axes}"
        )


def grid_distance(grid: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """The L1 length of each offset, (2 n_1 - 1, ..., 2 n_d - 1)."""
    distance = torch.zeros((), dtype=torch.int64, device=device)
    for n in grid:
        distance = distance[..., None] + torch.arange(1 - n, n, device=device).abs()
    return distance


def hide_later_keys(offsets: Tensor, grid: tuple[int, ...], one_sided: Sequence[int]) -> Tensor:
    """Zeros for the keys that come after the query along the one-sided axes."""
    for axis in one_sided:
        n = grid[axis]
        later = torch.arange(1 - n, n, device=offsets.device) < 0
        offsets = offsets.masked_fill(later[(..., *[None] * (len(grid) - 1 - axis))], 0.0)
    return offsets
