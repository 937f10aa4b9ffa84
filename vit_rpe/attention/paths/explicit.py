"""The explicit path in PyTorch: the attention matrix a tile at a time.

O(L^2 (M + D)) work, O(L) memory. Shapes: L tokens, M features, D value columns (the last one of
ones); leading dims are batch and heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.masks import Mask, Padding
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import TILES_ALIVE, PathCosts, explicit_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from .recompute import recomputed
from .tile import TileOptions, attend_tile, tile_sums

# On a CPU, tiles in PyTorch take about this many times as long as the compiled ones.
_CPU_SLOWDOWN = 2.0
# Rows of a mask that are kept for all samples take at most this part of the budget, one over it.
_SLABS_IN_BUDGET = 16


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
        on_cpu = q.device.type == "cpu" and product_dtype(request, q, k, v).itemsize >= 4
        if on_cpu or _has_inner_weights(request):
            return _part_by_part(plan, request, q, k, v)
        out_dtype, features = v.dtype, request.features
        q, k, v, mask, features = structure.absorb_token_weights(q, k, v, request.mask, features)
        dtype = product_dtype(request, q, k, v)
        options = TileOptions(
            features=features,
            dtype=dtype,
            floor=request.floor,
            dropout=request.dropout,
            nonnegative=request.nonnegative,
            by_hand=request.tracing == "" and request.dropout == 0,
            aligned=q.device.type == "cuda",
        )
        with without_autocast(q.device.type):
            return attend_in_tiles(q, k, v, mask, plan.budget, options).to(out_dtype)


def product_dtype(request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    """The precision of the operands of matrix products.

    As for torch's own attention it is bfloat16 where autocast asks for it, and on a GPU if q, k and
    v have it. Sums over many tokens overflow in float16: products in that are made in float32.
    """
    wide = structure.common_dtype(q, k, v)
    given = all(x.dtype == torch.bfloat16 for x in (q, k, v)) and q.device.type != "cpu"
    low = given or request.autocast == torch.bfloat16
    return torch.bfloat16 if low and wide == torch.float32 else wide


def _has_inner_weights(request: AttentionRequest) -> bool:
    """Whether weights of tokens stand where rows of the mask would not hide a key that is NaN."""
    mask = structure.without_token_weights(request.mask)
    inside = not isinstance(mask, Padding) and structure.has_weights_inside(mask)
    return inside or (request.floor != 0 and structure.kept_keys(request.mask) is not None)


def _part_by_part(
    plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Attend in float32 or better, one part of the mask after the other.

    Features and the division stand around the tiles, and are kept: on a CPU what a tile computes
    again counts, and not what it moves.
    """

    def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        with without_autocast(q.device.type):
            return explicit(q, k, v, mask, plan.budget, request.nonnegative, request.dropout)

    features, floor = request.features, request.floor
    return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)


def attend_in_tiles(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, budget: int, options: TileOptions
) -> Tensor:
    """The attention, some samples by some rows at a time; the backward pass makes tiles again."""
    samples, rows = tile_sizes(q, mask, budget, options.dtype.itemsize)
    if samples is None:
        return _attend_rows(q, k, v, mask, None, None, rows, options)
    slab = _shared_slab(mask, rows, budget)
    return torch.cat(
        [
            _attend_rows(a, b, c, mask, slab, own, rows, options)
            for own, a, b, c in _sample_tiles(samples, q, k, v)
        ]
    )


def _sample_tiles(
    samples: int, q: Tensor, k: Tensor, v: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Some samples at a time. By `split`: slices would each have a gradient of the whole size."""
    tiles = zip(q.split(samples), k.split(samples), v.split(samples), strict=True)
    for i, (a, b, c) in enumerate(tiles):
        yield slice(i * samples, (i + 1) * samples), a, b, c


def _shared_slab(mask: Mask, rows: int, budget: int) -> Tensor | None:
    """All rows of the mask, if they are few beside a tile: made once, and kept."""
    entries = prod(mask.batch_shape) * mask.length**2
    few = rows == mask.length and _SLABS_IN_BUDGET * 4 * entries <= budget
    return mask.rows(0, mask.length) if few else None


def _attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    slab: Tensor | None,
    samples: slice | None,
    rows: int,
    options: TileOptions,
) -> Tensor:
    parts = []
    for i, tile in enumerate(q.split(rows, -2)):
        args = (tile, k, v, mask, slab, samples, i * rows, options)
        parts.append(recomputed(_attend_tile, *args, random=options.dropout > 0))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _attend_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    slab: Tensor | None,
    samples: slice | None,
    start: int,
    options: TileOptions,
) -> Tensor:
    if slab is None:
        slab = mask.rows(start, start + q.shape[-2])
    return attend_tile(q, k, v, of_samples(slab.to(q.device), samples, q), options)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    budget: int,
    nonnegative: bool,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`A v` and the absolute row sums of A, for `A = M * (q k^T)`; v ends in a column of ones.

    Only tiles of A exist, some samples by some rows, and the backward pass makes them again.
    """
    samples, rows = tile_sizes(q, mask, budget)
    if samples is None:
        return _row_sums(q, k, v, mask, None, rows, nonnegative, dropout)
    parts = [
        _row_sums(a, b, c, mask, own, rows, nonnegative, dropout)
        for own, a, b, c in _sample_tiles(samples, q, k, v)
    ]
    sums, absolute = zip(*parts, strict=True)
    return torch.cat(sums), torch.cat(absolute)


def explicit_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """Rows `start` to `stop` of what `explicit` gives."""
    tile = q[..., start:stop, :]
    return recomputed(_tile_sums, tile, k, v, mask, None, start, False, 0.0)


def _row_sums(
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
    for i, tile in enumerate(q.split(rows, -2)):
        args = (tile, k, v, mask, samples, i * rows, nonnegative, dropout)
        parts.append(recomputed(_tile_sums, *args, random=dropout > 0))
    if len(parts) == 1:
        return parts[0]
    sums, absolute = zip(*parts, strict=True)
    return torch.cat(sums, -2), torch.cat(absolute, -2)


def _tile_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    samples: slice | None,
    start: int,
    nonnegative: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    slab = mask.rows(start, start + q.shape[-2]).to(q.device)
    return tile_sums(q, k, v, of_samples(slab, samples, q), nonnegative, dropout)


def of_samples(slab: Tensor, samples: slice | None, q: Tensor) -> Tensor:
    """Return those of a mask's rows that belong to the samples of a tile; None for all."""
    own = samples is not None and slab.ndim >= q.ndim and slab.shape[0] > 1
    return slab[samples] if own else slab


def tile_sizes(
    q: Tensor, mask: Mask, budget: int, itemsize: int | None = None
) -> tuple[int | None, int]:
    """(samples, rows) of a tile within the budget; None for all samples at once.

    Entries of a tile have `itemsize` bytes, or those of q.
    """
    if torch.compiler.is_exporting():  # the batch may be symbolic, and nothing may depend on it
        return None, mask.length
    if 0 in q.shape[:-2]:  # no sample at all
        return None, mask.length
    per_row = row_bytes(q, mask, itemsize)
    if per_row * mask.length <= budget or q.ndim < 4 or torch.compiler.is_compiling():
        return None, _whole_blocks(budget // per_row, mask)
    samples = budget // (per_row // q.shape[0] * mask.length)
    if samples >= 1:
        tiles = ceil(q.shape[0] / samples)  # of equal size
        return ceil(q.shape[0] / tiles), mask.length
    return 1, _whole_blocks(budget * q.shape[0] // per_row, mask)


def row_bytes(q: Tensor, mask: Mask, itemsize: int | None = None) -> int:
    """Bytes of a tile for each of its rows, with all heads of all samples."""
    size = q.element_size() if itemsize is None else itemsize
    return max(1, prod(q.shape[:-2])) * mask.length * size * TILES_ALIVE


def _whole_blocks(rows: int, mask: Mask) -> int:
    if rows >= mask.length:
        return mask.length
    return rows // mask.row_block * mask.row_block or max(rows, 1)
