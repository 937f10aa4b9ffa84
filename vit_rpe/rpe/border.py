"""Learned weights between prefix tokens and the grid."""

from __future__ import annotations

import torch
from torch import nn

from vit_rpe.masks import Bordered, Mask


class Border(nn.Module):
    """Puts `prefix` class and register tokens before a mask, with weights learned for each head.

    The weights are `exp(gain * parameter)` and start at 1: prefix * (prefix + 2) for each head.
    """

    def __init__(
        self,
        prefix: int,
        num_heads: int,
        gain: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.gain = gain
        self.row = nn.Parameter(torch.empty(num_heads, prefix, device=device, dtype=dtype))
        self.column = nn.Parameter(torch.empty(num_heads, prefix, device=device, dtype=dtype))
        self.corner = nn.Parameter(
            torch.empty(num_heads, prefix, prefix, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inner: Mask) -> Bordered:
        row, column, corner = (
            (self.gain * parameter).exp() for parameter in (self.row, self.column, self.corner)
        )
        return Bordered(inner, self.row.shape[-1], row, column, corner)
