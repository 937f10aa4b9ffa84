"""Weights between prefix tokens and the grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vit_rpe.masks import Bordered, Mask


class Border(nn.Module):
    """Puts `prefix` class and register tokens before a mask, with weights learned for each head.

    The weights are `exp(gain * parameter)` and start at 1: prefix * (prefix + 2) for each head.
    With `read_only` the prefix tokens read the grid and are not read by it: no column is learned.
    """

    column: nn.Parameter | None

    def __init__(
        self,
        prefix: int,
        num_heads: int,
        gain: float = 1.0,
        read_only: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.gain = gain
        self.row = nn.Parameter(torch.empty(num_heads, prefix, device=device, dtype=dtype))
        column = None if read_only else nn.Parameter(torch.empty_like(self.row))
        self.register_parameter("column", column)
        self.corner = nn.Parameter(
            torch.empty(num_heads, prefix, prefix, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inner: Mask) -> Bordered:
        row, corner = self._weight(self.row), self._weight(self.corner)
        column = torch.zeros_like(row) if self.column is None else self._weight(self.column)
        return Bordered(inner, self.row.shape[-1], row, column, corner, nonnegative=True)

    def _weight(self, parameter: Tensor) -> Tensor:
        return (self.gain * parameter).exp()


class ReadOnlyBorder(nn.Module):
    """Puts `prefix` tokens before a mask which read the grid with weight 1, and are not read by it.

    A class token that could be read would tell the first frame of a clip about the last.
    """

    def __init__(self, prefix: int):
        super().__init__()
        self.prefix = prefix

    def forward(self, inner: Mask) -> Bordered:
        column = torch.zeros(self.prefix, device=inner.device)
        return Bordered(inner, self.prefix, column=column, nonnegative=True)
