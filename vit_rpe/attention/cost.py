"""Which path is fastest, by a small model of their work. It sees shapes and masks, never values."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

from vit_rpe.masks import Exponential, Mask, Ones

from .scan import SCANNABLE, block_rows

Path = Literal["explicit", "product", "scan"]


@dataclass(frozen=True)
class PathCosts:
    """Nanoseconds per unit of work, forward and backward together, measured on two CPU cores."""

    multiply: float = 0.05  # a multiply-add of a large matrix product
    tile_entry: float = 1.2  # an entry of an explicit tile, apart from its products
    product_column: float = 8.0  # making and reading one entry of an L x (M D) matrix
    product_work: float = 0.45  # a unit of `Mask.cost`
    state_entry: float = 3.0  # making and reading one entry of a block's state
    call: float = 200_000.0  # what any path costs before it starts


DEFAULT_COSTS = PathCosts()


def path_costs(
    mask: Mask, lead: int, m: int, d: int, costs: PathCosts = DEFAULT_COSTS
) -> dict[Path, float]:
    """The estimated nanoseconds of each path that the mask allows, for `lead` heads in all."""
    length = mask.length
    estimates: dict[Path, float] = {
        "explicit": costs.call + lead * length**2 * (costs.multiply * (m + d) + costs.tile_entry),
        "product": costs.call
        + lead * (length * m * d * costs.product_column + mask.cost(m * d) * costs.product_work),
    }
    if isinstance(mask, SCANNABLE):
        estimates["scan"] = 2 * costs.call + lead * _scan_cost(mask, m, d, costs)
    return estimates


def choose_path(mask: Mask, lead: int, m: int, d: int, costs: PathCosts = DEFAULT_COSTS) -> Path:
    """The cheapest path for a mask that wraps no other. A pure function of shapes."""
    estimates = path_costs(mask, lead, m, d, costs)
    return min(estimates, key=estimates.__getitem__)


def _scan_cost(mask: Mask, m: int, d: int, costs: PathCosts) -> float:
    if isinstance(mask, Ones):
        return mask.length * m * d * 2 * costs.multiply
    if not isinstance(mask, Exponential):
        return _sweep_cost((mask.length,), 64, 1, 1, m, d, costs)
    directions = 1 if 0 in mask.one_sided else 2
    return _sweep_cost(mask.grid, block_rows(mask, m, d), mask.terms, directions, m, d, costs)


def _sweep_cost(
    grid: tuple[int, ...], b: int, terms: int, directions: int, m: int, d: int, costs: PathCosts
) -> float:
    place = prod(grid[1:])
    blocks = ceil(grid[0] / b)
    inside = blocks * (b * place) ** 2 * (costs.multiply * (m + d) + costs.tile_entry)
    if blocks == 1:
        return inside
    state = blocks * place * m * d
    along = min(blocks, 128) + sum(min(n, 128) for n in grid[1:])
    passes = terms * directions
    return inside + passes * (
        state * (costs.state_entry + along * costs.multiply) + 2 * b * state * costs.multiply
    )
