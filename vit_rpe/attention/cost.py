"""Which path is fastest, by a small model of their work. It sees shapes and masks, never values."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Literal

import torch

from vit_rpe.masks import Causal, Exponential, Mask, Ones

Path = Literal["explicit", "product", "scan"]

SCANNABLE = (Ones, Causal, Exponential)


@dataclass(frozen=True)
class PathCosts:
    """Nanoseconds of a forward and backward pass, measured on two cores of a server CPU."""

    multiply: float = 0.062  # a multiply-add of a tile's matrix products
    tile_entry: float = 5.0  # an entry of an explicit tile, apart from its products
    column_entry: float = 8.0  # making and reading one entry of an L x (M D) matrix
    product_work: float = 0.36  # a unit of `Mask.cost`
    state_entry: float = 22.0  # making, moving and reading one entry of a block's state
    lone_head: float = 1.3  # tiles of one head alone, whose products fill the cores less well
    call: float = 1.5e6  # what a path costs before it starts
    scan_call: float = 6e6

    def tile(self, m: int, d: int) -> float:
        return self.multiply * (m + d) + self.tile_entry


DEFAULT_COSTS = PathCosts()


def path_costs(
    mask: Mask, lead: int, m: int, d: int, costs: PathCosts = DEFAULT_COSTS
) -> dict[Path, float]:
    """The estimated nanoseconds of each path that the mask allows, for `lead` heads in all."""
    columns = m * d
    tiles = lead * mask.length**2 * costs.tile(m, d) * (costs.lone_head if lead == 1 else 1.0)
    estimates: dict[Path, float] = {"explicit": costs.call + tiles}
    if not torch.compiler.is_exporting():  # complex numbers and their precision stay in PyTorch
        work = mask.length * columns * costs.column_entry + mask.cost(columns) * costs.product_work
        estimates["product"] = costs.call + lead * work
    if isinstance(mask, SCANNABLE):
        estimates["scan"] = _scan_cost(mask, lead, m, d, costs)
    return estimates


def choose_path(mask: Mask, lead: int, m: int, d: int, costs: PathCosts = DEFAULT_COSTS) -> Path:
    """The cheapest path for a mask that wraps no other. A pure function of shapes."""
    estimates = path_costs(mask, lead, m, d, costs)
    return min(estimates, key=estimates.__getitem__)


def block_rows(
    grid: tuple[int, ...], passes: int, m: int, d: int, costs: PathCosts = DEFAULT_COSTS
) -> int:
    """Rows of a block of the scan: they balance the tiles inside blocks with the states between.

    `passes` is the number of states for each block and place: terms times directions.
    """
    place = prod(grid[1:])
    balance = sqrt(passes * m * d * costs.state_entry / (place * costs.tile(m, d)))
    return min(grid[0], max(round(balance), 1))


def scan_passes(mask: Exponential) -> int:
    """Terms times directions: along a one-sided first axis nothing comes from later blocks."""
    return mask.terms * (1 if 0 in mask.one_sided else 2)


def _scan_cost(mask: Mask, lead: int, m: int, d: int, costs: PathCosts) -> float:
    if isinstance(mask, Ones):
        return lead * mask.length * m * d * 2 * costs.multiply
    grid, passes = ((mask.length,), 1)
    if isinstance(mask, Exponential):
        grid, passes = mask.grid, scan_passes(mask)
    place, b = prod(grid[1:]), block_rows(grid, passes, m, d, costs)
    blocks = ceil(grid[0] / b)
    inside = blocks * (b * place) ** 2 * costs.tile(m, d)
    states = passes * blocks * place * m * d if blocks > 1 else 0
    return costs.scan_call + lead * (inside + states * costs.state_entry)
