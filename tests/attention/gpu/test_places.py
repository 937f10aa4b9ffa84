"""Two integers per token: equal to the mask bit by bit, within the table, for subsets and packs."""

from math import prod

import pytest
import torch

from tests.zoo import rand
from vit_rpe.attention.gpu.places import (
    HIDDEN,
    flat_table,
    pack_places,
    places,
    subset_places,
    token_at,
)
from vit_rpe.masks import Bordered, Toeplitz

GRIDS = [(1,), (7,), (1, 1), (1, 6), (4, 5), (14, 14), (2, 3, 4), (2, 1, 3, 2)]
CPU = torch.device("cpu")


def example(grid: tuple[int, ...], p: int, heads: int = 2) -> tuple:
    table = rand(heads, *(2 * n - 1 for n in grid))
    border = rand(heads, 2 * p + p * p)
    row, column, corner = border.split([p, p, p * p], 1)
    mask = Toeplitz(table, grid)
    if p:
        mask = Bordered(mask, p, row, column, corner.unflatten(1, (p, p)))
    return mask, table.flatten(1), border


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("p", [0, 1, 2, 5])
def test_equal_to_the_mask(grid, p):
    mask, table, border = example(grid, p)
    at = places(grid, p, CPU)
    flat = flat_table(table, border, at)
    index = (at.query[0, :, None] - at.key[0]).long()
    assert flat.shape == (2, at.entries) and index.min() >= 0 and index.max() < at.entries
    assert torch.equal(flat[:, index], mask.dense())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("p", [0, 3])
def test_rows_and_columns_that_fill_a_tile_stay_within_the_table(grid, p):
    """Queries that are not there stand at the origin, keys at 0."""
    at = places(grid, p, CPU)
    query = torch.cat([at.query[0], torch.tensor([at.origin])]).long()
    key = torch.cat([at.key[0], torch.tensor([0])]).long()
    index = query[:, None] - key
    assert index.min() >= 0 and index.max() < at.entries


@pytest.mark.parametrize("p", [0, 2])
def test_tokens_are_found_by_their_place(p):
    at = places((4, 5), p, CPU)
    assert torch.equal(token_at(at.key, p, at.origin + 1), at.token)
    assert torch.equal(at.token[0, at.key[0, p:].long()], torch.arange(p, p + 20).int())


def test_places_of_subsets():
    """Some cells of each sample, behind prefix tokens; one token of the second is not there."""
    mask, table, border = example((4, 5), 2)
    cells = torch.tensor([[0, 19, 7, 8], [3, 2, -1, 12]])
    query, key, span = subset_places((4, 5), 2, cells)
    at = places((4, 5), 2, CPU)
    flat, dense = flat_table(table, border, at), mask.dense()
    index = (query[:, :, None] - key[:, None, :]).long()
    for sample, own in enumerate(cells):
        there = torch.cat([torch.tensor([True, True]), own >= 0])
        tokens = torch.cat([torch.arange(2), own + 2])[there]
        inside = index[sample][there][:, there]
        assert torch.equal(flat[:, inside], dense[:, tokens][:, :, tokens])
        outside = (index[sample] < 0) | (index[sample] >= at.entries)
        assert torch.equal(outside, ~(there[:, None] & there))
    assert span == at.origin + 1 and HIDDEN > at.entries
    assert token_at(key, 2, span)[1].max() == 5


def test_places_of_packs():
    """Images of several sizes in a row, under the table of the largest."""
    grids, grid = [(2, 3), (4, 5), (3, 1)], (4, 5)
    _, table, _ = example(grid, 0)
    query, key, span = pack_places(grids, grid)
    index = (query[0, :, None] - key[0]).long()
    start = 0
    for own in grids:
        stop = start + prod(own)
        whole = Toeplitz(table.unflatten(1, (7, 9)), grid).dense()
        rows, columns = torch.meshgrid(*map(torch.arange, own), indexing="ij")
        cells = (rows * 5 + columns).flatten()
        inside = index[start:stop, start:stop]
        assert torch.equal(table[:, inside], whole[:, cells][:, :, cells])
        others = torch.ones(len(index), dtype=torch.bool)
        others[start:stop] = False
        apart = index[start:stop][:, others]
        assert ((apart < 0) | (apart >= table.shape[1])).all()
        start = stop
    assert 0 <= key.min() and key.max() < span
