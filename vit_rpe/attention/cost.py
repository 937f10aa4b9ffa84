"""Which path is fastest, by a small model of their work. It sees shapes and masks, never values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Literal

import torch

from vit_rpe.masks import Causal, Exponential, Mask, Ones

Path = Literal["explicit", "product", "scan"]

SCANNABLE = (Ones, Causal, Exponential)


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
        return self.multiply * (m + d) + self.tile_entry


DEFAULT_COSTS = PathCosts()
# Sending to a state and reading one, forward and backward, in multiply-adds of a tile.
_ENDS = 3
# A product in float64 takes this many times as long as one in float32.
_FLOAT64 = 1.9
# No machine's constants differ so much from these that a path this many times cheaper would lose.
_FAR_AHEAD = 5.0


def path_costs(
    mask: Mask,
    lead: int,
    m: int,
    d: int,
    costs: PathCosts = DEFAULT_COSTS,
    wide_range: bool = False,
    device: str = "cpu",
) -> dict[Path, float]:
    """The estimated nanoseconds of each path that the mask allows, for `lead` heads in all.

    Features of `wide_range` may need float64, which a GPU is slow at, and rows that are looked at:
    the product path then serves on a CPU only.
    """
    columns = m * d
    tiles = lead * mask.length**2 * costs.tile(m, d)
    estimates: dict[Path, float] = {"explicit": costs.call + tiles}
    float64 = wide_range and mask.normwise
    if not torch.compiler.is_exporting() and not (float64 and device != "cpu"):
        work = mask.length * columns * costs.column_entry + mask.cost(columns) * costs.product_work
        estimates["product"] = costs.call + lead * work * (_FLOAT64 if float64 else 1.0)
    if isinstance(mask, SCANNABLE):
        estimates["scan"] = _scan_cost(mask, lead, m, d, costs)
    return estimates


def choose_path(
    mask: Mask,
    lead: int,
    m: int,
    d: int,
    costs: PathCosts = DEFAULT_COSTS,
    wide_range: bool = False,
    device: str = "cpu",
) -> Path:
    """The cheapest path for a mask that wraps no other. A pure function of shapes and constants."""
    estimates = path_costs(mask, lead, m, d, costs, wide_range, device)
    return min(estimates, key=estimates.__getitem__)


def clear_choice(
    mask: Mask, lead: int, m: int, d: int, wide_range: bool = False, device: str = "cpu"
) -> Path | None:
    """The path that is far ahead on any machine, if there is one."""
    estimates = path_costs(mask, lead, m, d, DEFAULT_COSTS, wide_range, device)
    best = min(estimates, key=estimates.__getitem__)
    close = [path for path, cost in estimates.items() if cost <= _FAR_AHEAD * estimates[best]]
    return best if close == [best] else None


def block_slices(
    mask: Exponential, m: int, d: int, costs: PathCosts = DEFAULT_COSTS
) -> tuple[int, ...]:
    """Slices of the scan's blocks along the first axis, then along the next inside a block, and so
    on: they balance the tiles inside blocks with the states between."""
    return _blocks_of(mask, m, d, costs)[1]


def _blocks_of(
    mask: Exponential, m: int, d: int, costs: PathCosts
) -> tuple[float, tuple[int, ...]]:
    passes = tuple(
        mask.terms * (1 if axis in mask.one_sided else 2) for axis in range(len(mask.grid))
    )
    return _best_blocks(mask.grid, passes, m, d, costs)


@lru_cache(maxsize=1024)  # a search of a millisecond, for a scan that may take two
def _best_blocks(
    grid: tuple[int, ...], passes: tuple[int, ...], m: int, d: int, costs: PathCosts
) -> tuple[float, tuple[int, ...]]:
    """The least cost of one head on this grid, and the blocks that have it.

    The first axes of the grid have not been cut: `passes` are those of a state along each.
    """
    n, place = grid[0], prod(grid[1:])
    best = (costs.block_call + prod(grid) ** 2 * costs.tile(m, d), ())
    if not passes:
        return best
    for b in _block_sizes(n):
        blocks = ceil(n / b)
        inside, deeper = _best_blocks((*grid[1:], b), passes[1:], m, d, costs)
        # a state is moved once a block; every slice sends to one and reads one
        entry = costs.state_entry + b * _ENDS * costs.multiply
        state = costs.block_call + place * m * d * entry
        cost = blocks * inside + passes[0] * (blocks - 1) * state
        if cost < best[0]:  # `min` of tuples cannot be traced
            best = (cost, (b, *deeper))
    return best


def _block_sizes(n: int) -> list[int]:
    """Sizes worth trying: those that cut n evenly into 2, 3, 4, ... blocks, thinned out."""
    sizes = {ceil(n / count) for count in range(2, n + 1)}
    return sorted(size for size in sizes if size <= 64)


def _scan_cost(mask: Mask, lead: int, m: int, d: int, costs: PathCosts) -> float:
    if isinstance(mask, Exponential):
        return costs.scan_call + lead * _blocks_of(mask, m, d, costs)[0]
    if isinstance(mask, Ones):
        return lead * mask.length * m * d * 2 * costs.multiply
    causal = Exponential(torch.zeros(1), torch.ones(1), (mask.length,), one_sided=(0,))
    return _scan_cost(causal, lead, m, d, costs)
