"""Masks of attention layers as bytes: small enough to keep some of them of every run.

Models are asked, not known: a layer that has an `offset_table` has a mask to show.

Shapes: H heads; a table has the sides 2 n - 1 of a grid's offsets, query minus key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 254  # from a head's smallest weight to its largest; 0 is no weight at all
LARGEST = 1e30


def offset_tables(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of every attention layer by offset, (H, sides...), by the layer's name."""
    tables = {}
    for name, layer in model.named_modules():
        table: Any = getattr(layer, "offset_table", None)
        if callable(table) and callable(getattr(layer, "attend", None)):
            tables[name] = table()
    return {name: table for name, table in tables.items() if table is not None}


def as_bytes(table: Tensor) -> tuple[Tensor, Tensor]:
    """Write weights as bytes on a logarithmic scale of each head: codes, and logarithms (H, 2).

    Code 0 is a weight of 0, codes 1 to 255 go from the smallest to the largest logarithm. A weight
    that is below 0 or not a number counts as 0.
    """
    weights = table.detach().double().cpu().flatten(1).nan_to_num(0.0, LARGEST, 0.0)
    seen = weights > 0
    logs = weights.clamp(min=1 / LARGEST).log()
    low = logs.masked_fill(~seen, torch.inf).amin(1)
    high = logs.masked_fill(~seen, -torch.inf).amax(1)
    low, high = low.nan_to_num(0, 0, 0), high.nan_to_num(0, 0, 0)  # of a head without any weight
    span = (high - low).clamp(min=1e-12)[:, None]
    codes = (1 + LEVELS * (logs - low[:, None]) / span).round().clamp(1, LEVELS + 1)
    codes = codes.masked_fill(~seen, 0).to(torch.uint8).reshape(table.shape)
    return codes, torch.stack([low, high], 1).float()


def from_bytes(codes: Tensor, ranges: Tensor) -> Tensor:
    """Return the weights that bytes stand for, as `as_bytes` wrote them."""
    low, high = (each.double().view(-1, *[1] * (codes.ndim - 1)) for each in ranges.unbind(1))
    weights = (low + (high - low) * (codes.double() - 1) / LEVELS).exp()
    return weights.masked_fill(codes == 0, 0.0).float()


def shown_epochs(epochs: int, most: int) -> list[int]:
    """Return the numbers of finished epochs after which masks are kept: the first and the last.

    At most `most`, at equal distances: they depend on the length of the run only.
    """
    stride = max(1, -(-epochs // (most - 1)))
    return sorted({*range(0, epochs + 1, stride), epochs})


def picture(table: Tensor) -> Tensor:
    """Draw the heads of a layer side by side, bytes (1, rows, columns): dark is large.

    Each head has a scale of its own, from its smallest weight to its largest. A mask over time has
    a column for each offset in time.
    """
    codes, _ = as_bytes(table)
    planes = codes if codes.ndim == 4 else codes[:, None]
    planes = planes.reshape(*planes.shape[:2], *_two(planes.shape[2:]))
    zoom = max(1, 64 // max(planes.shape[-2:]))
    planes = 255 - planes.repeat_interleave(zoom, -2).repeat_interleave(zoom, -1)
    planes = nn.functional.pad(planes, (2, 2, 2, 2), value=255)
    if codes.ndim < 4:
        return torch.cat([*planes[:, 0]], 1)[None]
    return torch.cat([torch.cat([*head], 1) for head in planes])[None]


def _two(sides: torch.Size) -> tuple[int, int]:
    return (1, int(sides[0])) if len(sides) == 1 else (int(sides[0]), int(sides[1]))
