"""The explicit path: the attention matrix a tile at a time. O(L^2 (M + D)) work, O(L) memory."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Mask

from .recompute import recomputed

# How many tensors of a tile's size live at once, at worst (in the backward pass).
_LIVE = 6
# Thinner tiles than this many rows waste the matrix products.
_FEWEST_ROWS = 384


def default_budget(q: Tensor) -> int:
    """Tiles that stay in a CPU's cache; a GPU, and a compiler that fuses, want larger ones."""
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return 512 << 20
    return max(64 << 20, _FEWEST_ROWS * q.shape[-2] * q.element_size() * _LIVE)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    budget: int,
    nonnegative: bool,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`A v` and the absolute row sums of A, for `A = M * (q k^T)`. Shapes as in `functional.py`.

    Only tiles of A exist, some samples by some rows, and the backward pass makes them again.
    """
    samples, rows = _tile(q, mask, budget)
    if samples is None:
        return _row_tiles(q, k, v, mask, None, rows, nonnegative, dropout)
    parts = [
        _row_tiles(q[s], k[s], v[s], mask, s, rows, nonnegative, dropout)
        for s in (slice(i, i + samples) for i in range(0, q.shape[0], samples))
    ]
    sums, absolute = zip(*parts, strict=True)
    return torch.cat(sums), torch.cat(absolute)


def explicit_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """Rows `start` to `stop` of what `explicit` gives."""
    tile = q[..., start:stop, :]
    return recomputed(_one_tile, tile, k, v, mask, None, start, stop, False, 0.0)


def _row_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    samples: slice | None,
    rows: int,
    nonnegative: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    parts = []
    for start in range(0, mask.length, rows):
        stop = min(start + rows, mask.length)
        tile = q[..., start:stop, :]
        args = (tile, k, v, mask, samples, start, stop, nonnegative, dropout)
        parts.append(recomputed(_one_tile, *args, random=dropout > 0))
    if len(parts) == 1:
        return parts[0]
    sums, absolute = zip(*parts, strict=True)
    return torch.cat(sums, -2), torch.cat(absolute, -2)


def _one_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    samples: slice | None,
    start: int,
    stop: int,
    nonnegative: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    slab = mask.rows(start, stop).to(q.device)
    if samples is not None and slab.ndim >= q.ndim and slab.shape[0] > 1:
        slab = slab[samples]
    weights = (q @ k.mT) * slab
    if dropout > 0:  # the normaliser, v's last column, counts every key
        values = F.dropout(weights, dropout) @ v[..., :-1]
        sums = torch.cat([values, weights @ v[..., -1:]], -1)
    else:
        sums = weights.to(v.dtype) @ v
    sums = sums.to(v.dtype)
    if nonnegative:
        return sums, sums[..., -1:].detach().abs()
    return sums, torch.linalg.vector_norm(weights.detach().to(v.dtype), 1, dim=-1, keepdim=True)


def _tile(q: Tensor, mask: Mask, budget: int) -> tuple[int | None, int]:
    """(samples, rows) of a tile within the budget; None for all samples at once."""
    if torch.compiler.is_exporting():  # the batch may be symbolic, and nothing may depend on it
        return None, mask.length
    if 0 in q.shape[:-2]:  # no sample at all
        return None, mask.length
    per_row = row_bytes(q, mask)
    if per_row * mask.length <= budget or q.ndim < 4 or torch.compiler.is_compiling():
        return None, _whole_blocks(budget // per_row, mask)
    samples = budget // (per_row // q.shape[0] * mask.length)
    if samples >= 1:
        return samples, mask.length
    return 1, _whole_blocks(budget * q.shape[0] // per_row, mask)


def row_bytes(q: Tensor, mask: Mask) -> int:
    """What a tile takes for each of its rows, with all heads of all samples."""
    return max(1, prod(q.shape[:-2])) * mask.length * q.element_size() * _LIVE


def _whole_blocks(rows: int, mask: Mask) -> int:
    if rows >= mask.length:
        return mask.length
    return rows // mask.row_block * mask.row_block or max(rows, 1)
