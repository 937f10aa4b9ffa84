"""Learned rates of decay: masks with a linear-time product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_rpe.masks import Exponential

from .base import MAX_INIT_SLOPE, GridRPE

# Terms beyond the first start with this weight: too small to show, large enough to learn.
_FAINT = 1e-4
# Rates are learned for an axis of this many tokens, and hold for longer and shorter ones in
# proportion: the same parameters mean the same function on every grid. Axes of a fixed step have
# the rates of the reference, however long they are.
_REFERENCE_SIDE = 14


class ExponentialRPE(GridRPE):
    """`M[i, j] = sum_r weight_r * exp(-sum_a rate_{r,a} |i_a - j_a|)` for each head.

    Parameters: num_heads * terms * (1 + d). At the start term 0 has weight 1 and the slope of its
    head (0 with `init="ones"`: a constant); the others have spread rates and almost no weight.

    A rate may become slightly negative, so that none is ever stuck at zero: over the whole length
    of an axis, or 14 cells of one that is cropped, a mask grows by a factor of at most e.
    """

    def __init__(
        self,
        grid: Sequence[int],
        num_heads: int,
        terms: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ):
        super().__init__(grid, num_heads, **options)
        if terms < 1:
            raise ValueError(f"ExponentialRPE needs at least 1 term, got {terms}")
        self.terms = terms
        d = len(self.grid)
        self.weight = nn.Parameter(torch.empty(num_heads, terms, device=device, dtype=dtype))
        self.rate = nn.Parameter(torch.empty(num_heads, terms, d, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        log_weight = torch.full((self.num_heads, self.terms), _FAINT).log()
        log_weight[:, 0] = 0.0
        rates = (MAX_INIT_SLOPE * torch.arange(self.terms) / self.terms).repeat(self.num_heads, 1)
        rates[:, 0] = self._slopes()
        with torch.no_grad():
            self.weight.copy_(self._start(log_weight))
            stretch = torch.tensor([_stretch(n) for n in self._sides(self.grid)])
            self.rate.copy_(rates[..., None] / (self.gain * stretch))

    def forward(self, grid: Sequence[int] | None = None) -> Exponential:
        grid = self._grid(grid)
        # A positive rate as it is; below, it levels off where a whole axis gives a factor of e. One
        # axis after the other, for a tensor of their sides would have to be copied to the device.
        axes = zip(self.rate.unbind(-1), self._sides(grid), strict=True)
        rates = torch.stack([_leveled(self.gain * rate, n) for rate, n in axes], -1)
        weights = self._weight(self.weight)
        return Exponential(rates, weights, grid, self.one_sided, nonnegative=True)

    def resize(self, grid: Sequence[int]) -> None:
        self.grid = self._grid(grid)

    def _sides(self, grid: tuple[int, ...]) -> list[int]:
        """The lengths of the axes; that of the reference for axes that are cropped.

        What a rate means then does not depend on the number of frames.
        """
        return [_REFERENCE_SIDE if a in self.crop_axes else n for a, n in enumerate(grid)]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, terms={self.terms}"


def _stretch(side: int) -> float:
    """The length of a reference axis over that of an axis; 1 for one of a fixed step."""
    return (_REFERENCE_SIDE - 1) / max(side - 1, 1)


def _leveled(rate: Tensor, side: int) -> Tensor:
    """The rate on an axis of so many cells, at least minus one over its length."""
    floor = 1 / max(side - 1, 1)
    return floor * F.celu(rate * (_stretch(side) / floor))
