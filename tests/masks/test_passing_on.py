"""What masks pass on: their precision, what they have prepared, and how they like columns."""

import pytest
import torch

from tests.graph.graphs import GRAPH_ZOO
from vit_rpe.graph import Diffusion, grid_edges
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Mask,
    Ones,
    Packing,
    Padding,
    Scaled,
    Sparse,
    Sum,
)

WRAPPERS = {
    "bordered": lambda inner: Bordered(inner, 1, torch.rand(1), torch.rand(1), torch.rand(1, 1)),
    "scaled": lambda inner: Scaled(inner, torch.rand(inner.length), torch.rand(inner.length)),
    "sum": lambda inner: Sum([inner, inner]),
    "blocks": lambda inner: BlockDiagonal([inner, inner]),
    "nested": lambda inner: Sum([Scaled(BlockDiagonal([inner]), torch.rand(inner.length))]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Ones(5),
        lambda: Causal(5),
        lambda: Padding(torch.arange(5) < 3),
        lambda: Packing(torch.tensor([0, 0, 1, 1, 1])),
        lambda: Bordered(Causal(4), 1),
    ],
)
def test_masks_without_weights_have_the_default_precision(make, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        mask: Mask = make()
        assert mask.dense().dtype == mask.rows(0, 1).dtype == mask.rows(1, 4).dtype == dtype
        torch.testing.assert_close(mask.rows(1, 4), mask.dense()[1:4])
    finally:
        torch.set_default_dtype(before)


def test_magnitudes_learn_nothing():
    matrix = torch.rand(3, 3, requires_grad=True)
    assert not Dense(matrix).abs_bound().dense().requires_grad


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_is_prepared_inside(name):
    """The magnitude of Diffusion follows the precision that it was prepared for."""
    mask = WRAPPERS[name](Diffusion(grid_edges((5,)), lam=0.7))
    prepared = mask.precomputed(torch.float64)
    assert type(prepared) is type(mask) and prepared.length == mask.length
    assert prepared.abs_bound().dense().max() > 2 * mask.abs_bound().dense().max()
    x = torch.rand(mask.length, 2)
    torch.testing.assert_close(prepared.matmul(x), mask.matmul(x))


@pytest.mark.parametrize("name", WRAPPERS)
def test_how_columns_are_stored(name):
    by_rows, by_columns = GRAPH_ZOO["walk_kernel"](), Causal(11)
    assert (
        WRAPPERS[name](by_rows).prefers_row_major
        and not WRAPPERS[name](by_columns).prefers_row_major
    )
    assert Sparse(grid_edges((3,)), torch.rand(4), 3).prefers_row_major
    assert not Sum([by_rows, by_columns]).prefers_row_major
    assert not BlockDiagonal([by_columns, by_rows]).prefers_row_major
