"""Costs of paths, by a small model of their work, and the bytes that they may use.

Numbers in, numbers out: which masks allow a path is known to the forms. Shapes: L tokens, M
features, D value columns (with the normalizer); H heads of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

import torch


@dataclass(frozen=True)
class PathCosts:
    """Nanoseconds of a forward and backward pass, measured on two cores of a server CPU."""

    multiply: float = 0.034  # a multiply-add of a tile's matrix products
    tile_entry: float = 0.55  # an entry of an explicit tile, apart from its products
    column_entry: float = 5.0  # making and reading one entry of an L x (M D) matrix
    product_work: float = 0.13  # a unit of `Mask.cost`
    state_entry: float = 1.5  # moving and spreading one entry of a state
    block_call: float = 3e4  # what a block costs before it starts
    call: float = 6e5  # what a path costs before it starts
    scan_call: float = 2e6

    def tile(self, m: int, d: int) -> float:
        """An entry of an explicit tile with its products."""
        return self.multiply * (m + d) + self.tile_entry


_CPU = PathCosts()
# Of an A100 in bfloat16, on paper (bytes that are moved, at 1.6 TB/s): nobody has measured it. An
# explicit tile beats a scan in PyTorch below about 4,096 tokens.
_GPU = PathCosts(
    multiply=3e-4,
    tile_entry=0.09,
    column_entry=0.25,
    product_work=2e-3,
    state_entry=2.0,
    block_call=100.0,
    call=5e5,
    scan_call=5e5,
)
# A fused kernel on a GPU takes this share of the time of tiles that go through memory, on paper:
# ten matrix products of 64 channels at 110 TFLOP/s.
_FUSED_SHARE = 0.1
# Sending to a state and reading one, forward and backward, in multiply-adds of a tile.
_STATE_ENDS = 3
# A product in float64 takes this many times as long as one in float32.
_FLOAT64 = 1.9

# Bytes beyond inputs and outputs. On a CPU what stays near its cache; a GPU wants large steps.
_CPU_BUDGET = {"explicit": 64 << 20, "product": 64 << 20, "scan": 256 << 20}
_GPU_BUDGET = {"explicit": 512 << 20, "product": 512 << 20, "scan": 1 << 30}
# Tensors of a tile's size that are alive at once, at worst (in the backward pass).
TILES_ALIVE = 6
# Thinner tiles than this many rows waste the matrix products.
_FEWEST_ROWS = 384


def default_costs(device: str) -> PathCosts:
    """The constants for a kind of device, before anything is measured."""
    return _CPU if device in ("cpu", "meta") else _GPU


def default_budget(
    path: str, device: str, length: int, dtype: torch.dtype, tracing: bool = False
) -> int:
    """The bytes that a path may use on a kind of device; a compiler wants large tiles, too."""
    if device not in ("cpu", "meta"):
        return _GPU_BUDGET[path]
    if path != "explicit":
        return _CPU_BUDGET[path]
    if tracing:
        return _GPU_BUDGET[path]
    return max(_CPU_BUDGET[path], _FEWEST_ROWS * length * dtype.itemsize * TILES_ALIVE)


def explicit_cost(heads: int, length: int, m: int, d: int, costs: PathCosts) -> float:
    """Every entry of the attention matrix, in tiles."""
    return costs.call + heads * length**2 * costs.tile(m, d)


def fused_cost(heads: int, length: int, m: int, d: int, costs: PathCosts) -> float:
    """The entries again, in one kernel: they never go through memory."""
    return costs.call + heads * length**2 * costs.tile(m, d) * _FUSED_SHARE


def block_cost(heads: int, entries: int, groups: int, m: int, d: int, costs: PathCosts) -> float:
    """Some entries of the attention matrix, in groups of blocks of one size."""
    return groups * costs.call + heads * entries * costs.tile(m, d)


def product_cost(
    heads: int, length: int, m: int, d: int, mask_cost: float, costs: PathCosts, float64: bool
) -> float:
    """An L x (M D) matrix, and its product with the mask, which does `mask_cost` work."""
    work = length * m * d * costs.column_entry + mask_cost * costs.product_work
    return costs.call + heads * work * (_FLOAT64 if float64 else 1.0)


def sum_cost(heads: int, length: int, m: int, d: int, costs: PathCosts) -> float:
    """One M x D matrix that all queries read: no mask at all."""
    return heads * length * m * d * 2 * costs.multiply


def scan_cost(
    heads: int, grid: tuple[int, ...], passes: tuple[int, ...], m: int, d: int, costs: PathCosts
) -> float:
    """States between blocks of slices, tiles inside them; `passes` of a state along each axis."""
    return costs.scan_call + heads * _best_blocks(grid, passes, m, d, costs)[0]


def best_blocks(
    grid: tuple[int, ...], passes: tuple[int, ...], m: int, d: int, costs: PathCosts
) -> tuple[int, ...]:
    """Slices of the scan's blocks along the first axis, then along the next inside a block, ...

    They balance the tiles inside blocks with the states between.
    """
    return _best_blocks(grid, passes, m, d, costs)[1]


@lru_cache(maxsize=1024)  # a search of a millisecond, for a scan that may take two
def _best_blocks(
    grid: tuple[int, ...], passes: tuple[int, ...], m: int, d: int, costs: PathCosts
) -> tuple[float, tuple[int, ...]]:
    """The least cost of one head on this grid, and the blocks that have it.

    The first axes of the grid have not been cut: `passes` are those of a state along each.
    """
    n, cells = grid[0], prod(grid[1:])
    best = (costs.block_call + prod(grid) ** 2 * costs.tile(m, d), ())
    if not passes:
        return best
    for b in _block_sizes(n):
        blocks = ceil(n / b)
        inside, deeper = _best_blocks((*grid[1:], b), passes[1:], m, d, costs)
        # a state is moved once a block; every slice sends to one and reads one
        entry = costs.state_entry + b * _STATE_ENDS * costs.multiply
        state = costs.block_call + cells * m * d * entry
        cost = blocks * inside + passes[0] * (blocks - 1) * state
        if cost < best[0]:  # `min` of tuples cannot be traced
            best = (cost, (b, *deeper))
    return best


def _block_sizes(n: int) -> list[int]:
    """Sizes worth trying: those that cut n evenly into 2, 3, 4, ... blocks, thinned out."""
    sizes = {ceil(n / count) for count in range(2, n + 1)}
    return sorted(size for size in sizes if size <= 64)
