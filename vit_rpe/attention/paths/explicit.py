"""The explicit path in PyTorch: the attention matrix a tile at a time.

O(L^2 (M + D)) work, O(L) memory. Shapes: L tokens, M features, D value columns (the last one of
ones); leading dims are batch and heads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.precision import autocast_dtype, without_autocast

from .. import structure
from ..cost import TILES_ALIVE, PathCosts, explicit_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from .recompute import recomputed

# On a CPU, tiles in PyTorch take about this many times as long as the compiled ones.
_CPU_SLOWDOWN = 2.0


class TorchExplicit:
    """Any mask, by its rows; the only path with dropout of single weights."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "torch"

    def supports(self, request: AttentionRequest) -> str | None:
        return None

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        m, d = request.num_features, request.num_values + 1
        cost = explicit_cost(request.num_heads, request.leaf.length, m, d, costs)
        slowdown = _CPU_SLOWDOWN if request.device.type == "cpu" else 1.0
        return costs.call + slowdown * (cost - costs.call)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
            with _no_float16(q.device.type):
                return explicit(q, k, v, mask, plan.budget, request.nonnegative, request.dropout)

        features, floor = request.features, request.floor
        return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)


def _no_float16(device: str) -> AbstractContextManager:
    """Autocast off where it is float16: sums over many tokens overflow in it."""
    return without_autocast(device) if autocast_dtype(device) == torch.float16 else nullcontext()


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    budget: int,
    nonnegative: bool,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`A v` and the absolute row sums of A, for `A = M * (q k^T)`.

    Only tiles of A exist, some samples by some rows, and the backward pass makes them again.
    """
    samples, rows = tile_sizes(q, mask, budget)
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
    slab = of_samples(mask.rows(start, stop).to(q.device), samples, q)
    weights = (q @ k.mT) * slab
    if dropout > 0:  # the normalizer, v's last column, counts every key
        values = F.dropout(weights, dropout) @ v[..., :-1]
        sums = torch.cat([values, weights @ v[..., -1:]], -1)
    else:
        sums = weights.to(v.dtype) @ v
    sums = sums.to(v.dtype)
    if nonnegative:
        return sums, sums[..., -1:].detach().abs()
    return sums, torch.linalg.vector_norm(weights.detach().to(v.dtype), 1, dim=-1, keepdim=True)


def of_samples(slab: Tensor, samples: slice | None, q: Tensor) -> Tensor:
    """What of a mask's rows belongs to the samples of a tile; None for all."""
    own = samples is not None and slab.ndim >= q.ndim and slab.shape[0] > 1
    return slab[samples] if own else slab


def tile_sizes(q: Tensor, mask: Mask, budget: int) -> tuple[int | None, int]:
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
    """Bytes of a tile for each of its rows, with all heads of all samples."""
    return max(1, prod(q.shape[:-2])) * mask.length * q.element_size() * TILES_ALIVE


def _whole_blocks(rows: int, mask: Mask) -> int:
    if rows >= mask.length:
        return mask.length
    return rows // mask.row_block * mask.row_block or max(rows, 1)
