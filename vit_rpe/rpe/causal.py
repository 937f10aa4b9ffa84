"""No weights at all: a query sees everything that is not later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vit_rpe.masks import Exponential

from .base import GridRPE


class CausalRPE(GridRPE):
    """Ones for keys at the query's own cell or before along the `one_sided` axes, zeros elsewhere.

    No parameters, and nothing in the state dict: an `Exponential` that does not decay, and so has
    its product in linear time.
    """

    ones: Tensor

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
        # a buffer knows the device and the precision of the model
        ones = torch.empty(num_heads, 1, device=device, dtype=dtype)
        self.register_buffer("ones", ones, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.ones.fill_(1.0)

    def forward(self, grid: Sequence[int] | None = None) -> Exponential:
        rates = torch.zeros_like(self.ones)
        grid = self._grid(grid)
        return Exponential(rates, self.ones, grid, self.one_sided, nonnegative=True)

    def resize(self, grid: Sequence[int]) -> None:
        self.grid = self._grid(grid)
