"""Learned rates of decay: masks with a linear-time product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_rpe.masks import Exponential

from .base import STEEPEST, GridRPE

# Terms beyond the first start with this weight: too small to show, large enough to learn.
_FAINT = 1e-4


class ExponentialRPE(GridRPE):
    """`M[i, j] = sum_r weight_r * exp(-sum_a rate_{r,a} |i_a - j_a|)` for each head.

    Parameters: num_heads * terms * (1 + d). At the start term 0 has weight 1 and the slope of its
    head (0 with `init="ones"`: a constant); the others have spread rates and almost no weight.

    A rate may become slightly negative, so that none is ever stuck at zero: over the whole length
    of an axis a mask grows by a factor of at most e.
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
        rates = STEEPEST * torch.arange(self.terms) / self.terms
        rates = rates.repeat(self.num_heads, 1)
        rates[:, 0] = self._slopes()
        with torch.no_grad():
            self.weight.copy_(self._start(log_weight))
            self.rate.copy_((rates / self.gain)[..., None].expand_as(self.rate))

    def forward(self, grid: Sequence[int] | None = None) -> Exponential:
        grid = self._grid(grid)
        rates = _bounded(self.gain * self.rate * self._stretch(grid), grid)
        return Exponential(rates, self._weight(self.weight), grid, self.one_sided)

    def resize(self, grid: Sequence[int]) -> None:
        grid = self._grid(grid)
        if grid != self.grid:
            self.rate = nn.Parameter(
                self.rate.detach() * self._stretch(grid), self.rate.requires_grad
            )
            self.grid = grid

    def _stretch(self, grid: tuple[int, ...]) -> Tensor:
        """The old length of each axis over the new one; an axis of one token has no length."""
        factors = [
            (n - 1) / (size - 1) if min(n, size) > 1 else 1.0
            for n, size in zip(self.grid, grid, strict=True)
        ]
        return torch.tensor(factors, device=self.rate.device, dtype=self.rate.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, terms={self.terms}"


def _bounded(rate: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The rate itself where it is positive; below, it levels off at -1 over the whole axis."""
    floor = torch.tensor([1.0 / max(n - 1, 1) for n in grid], device=rate.device, dtype=rate.dtype)
    return floor * F.celu(rate / floor)
