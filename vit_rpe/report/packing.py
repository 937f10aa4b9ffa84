"""Features of attention, packed for a page that computes rows from them, and the rows it gets.

    M[i, j] K[i, j] / sum_j M[i, j] K[i, j],   K = phi(q) . phi(k), or exp(q . k / sqrt d)

Queries and keys are rows of float16 or of bytes, each with a scale of its own; the mask is a table
of its offsets, 16-bit logarithms. `page_rows` computes what `assets/explorer.js` does.

Shapes: H heads, L tokens (P prefix tokens, then the grid), M features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .pictures import encode

Precision = Literal["half", "byte"]
STEPS = 65534  # of the logarithms of a table; code 0 is a weight of 0
NOTHING = -1e9  # stands for the logarithm of 0 in a border


@dataclass(frozen=True)
class PackedRows:
    """Rows of features (H, L, M) as float16 or bytes, and their scales (H, L)."""

    codes: Tensor
    scales: Tensor
    signed: bool

    @classmethod
    def of(cls, x: Tensor, precision: Precision) -> PackedRows:
        """Pack features: bytes are from 0 to 1 of the row's largest, or from -1 to 1."""
        scales = x.abs().amax(-1).float()
        unit = x / scales.clamp(min=1e-38)[..., None]
        signed = bool((x < 0).any())
        if precision == "half":
            return cls(unit.half(), scales, signed)
        codes = 128 + 127 * unit if signed else 255 * unit
        return cls(codes.round().to(torch.uint8), scales, signed)

    def unpack(self) -> Tensor:
        """Return the features that the page works with, float64."""
        x = self.codes.double()
        if self.codes.dtype == torch.uint8:
            x = (x - 128) / 127 if self.signed else x / 255
        return x * self.scales.double()[..., None]

    def as_json(self) -> dict[str, Any]:
        codes, scales = self.codes.contiguous(), self.scales.contiguous()
        return {
            "codes": encode(codes.numpy().tobytes()),
            "scales": encode(scales.numpy().tobytes()),
            "signed": self.signed,
        }


@dataclass(frozen=True)
class PackedMask:
    """A mask by offsets, (H, sides) codes with their ranges of logarithms, behind prefix tokens.

    `row` are logarithms of what prefix tokens take from the grid, (H, P), `column` of what the grid
    takes from them, `corner` (H, P, P) of what they take from each other.
    """

    grid: tuple[int, ...]
    codes: Tensor
    ranges: Tensor
    row: Tensor
    column: Tensor
    corner: Tensor

    @classmethod
    def of(cls, table: Tensor, mask: Any, grid: tuple[int, ...], prefix: int) -> PackedMask:
        """Pack a table (H, sides), and the border of the mask that it is in."""
        heads = len(table)
        logs = table.double().log()
        finite = logs.isfinite()
        low = logs.masked_fill(~finite, torch.inf).flatten(1).amin(1).nan_to_num(0, 0, 0)
        high = logs.masked_fill(~finite, -torch.inf).flatten(1).amax(1).nan_to_num(0, 0, 0)
        shape = (-1, *[1] * len(grid))
        span = (high - low).clamp(min=1e-9).view(shape)
        codes = 1 + STEPS * (logs - low.view(shape)) / span
        codes = codes.nan_to_num(0).round().clamp(1, STEPS + 1).masked_fill(~finite, 0)
        borders = [torch.zeros(heads, *size) for size in ((prefix,), (prefix,), (prefix, prefix))]
        if prefix:
            top = mask.rows(0, prefix).expand(heads, prefix, -1)
            side = mask.rows(prefix, prefix + 1).expand(heads, 1, -1)
            found = (top[..., prefix], side[:, 0, :prefix], top[..., :prefix])
            borders = [each.double().log().nan_to_num(NOTHING, NOTHING, NOTHING) for each in found]
        return cls(grid, codes.to(torch.int32), torch.stack([low, high], 1), *borders)

    def rows(self, tokens: list[int]) -> Tensor:
        """Return the logarithms of some rows, less those of each head's largest, float64."""
        low, high = (each.view(-1, *[1] * len(self.grid)) for each in self.ranges.unbind(1))
        table = low + (high - low) * (self.codes.double() - 1) / STEPS - high
        table = table.masked_fill(self.codes == 0, -torch.inf)
        return torch.stack([self._row(table, token) for token in tokens], 1)

    def _row(self, table: Tensor, token: int) -> Tensor:
        prefix, high = self.row.shape[1], self.ranges[:, 1:]
        cells = table[0].numel() and int(torch.tensor(self.grid).prod())
        if token < prefix:
            grid = self.row[:, token, None].double().expand(-1, cells) - high
            row = torch.cat([self.corner[:, token].double() - high, grid], 1)
        else:
            place = torch.unravel_index(torch.tensor(token - prefix), self.grid)
            window = table
            for axis, (i, n) in enumerate(zip(place, self.grid, strict=True), 1):
                # key j is at offset i - j, which is at i - j + n - 1
                window = window.narrow(axis, int(i), n).flip(axis)
            row = torch.cat([self.column.double() - high, window.flatten(1)], 1)
        return row.masked_fill(row < NOTHING / 2, -torch.inf)

    def as_json(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "codes": encode(self.codes.numpy().astype("<u2").tobytes()),
            "ranges": self.ranges.tolist(),
            "row": self.row.tolist(),
            "column": self.column.tolist(),
            "corner": self.corner.tolist(),
        }


def page_rows(q: PackedRows, k: PackedRows, mask: PackedMask, kernel: str, at: list[int]) -> Tensor:
    """Return the rows of attention that the page computes, (H, len(at), L)."""
    logs = mask.rows(at)
    kernels = q.unpack()[:, at] @ k.unpack().mT
    if kernel == "softmax":
        logits = logs + kernels
        empty = (logits == -torch.inf).all(-1, keepdim=True)
        return logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    weights = logs.exp() * kernels
    total = weights.sum(-1, keepdim=True)
    absolute = weights.abs().sum(-1, keepdim=True)
    empty = total.abs() <= torch.finfo(torch.float32).eps * absolute
    return weights / total.masked_fill(empty, torch.inf)
