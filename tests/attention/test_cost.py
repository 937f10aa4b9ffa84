"""The cost model: blocks that it chooses, and numbers that grow as the work does."""

import pytest
import torch

from tests.attention.requests import estimates
from vit_rpe.attention.cost import best_blocks, default_budget, default_costs
from vit_rpe.masks import Toeplitz


def blocks(*grid: int, terms: int = 1) -> tuple[int, ...]:
    return best_blocks(grid, tuple(2 * terms for _ in grid), 16, 17, default_costs("cpu"))


def test_blocks_stay_within_the_grid():
    assert blocks(5, 3) == () and blocks(1) == ()  # explicit
    for grid in ((200, 300), (9, 40, 50), (5000,)):
        assert 1 <= len(blocks(*grid)) <= len(grid)
        assert all(1 <= b < n for b, n in zip(blocks(*grid), grid, strict=False))
    assert blocks(5000, terms=4)[0] >= blocks(5000)[0]  # more states, larger blocks


def test_values_play_no_part():
    first = Toeplitz(torch.ones(79, 79), (40, 40))
    second = Toeplitz(torch.randn(79, 79) * 1e6, (40, 40))
    assert estimates(first, 3, 16, 16) == estimates(second, 3, 16, 16)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_a_gpu_may_use_more_memory(path):
    on_cpu, on_gpu = (default_budget(path, kind, 196, torch.float32) for kind in ("cpu", "cuda"))
    assert on_cpu < on_gpu
