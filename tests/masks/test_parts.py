"""Parts of masks: their blocks, some of them, single entries."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.graphs import random_graph, rings
from tests.masks.contract import MaskContract
from tests.zoo import rand
from vit_rpe.graph import Diffusion, WalkKernel, random_walks
from vit_rpe.masks import ChosenParts, Dense, Mask, Toeplitz
from vit_rpe.masks.helpers import SparseMatrix

SIZES = (5, 1, 9, 3, 2)


def dense() -> Mask:
    return Dense(torch.block_diag(*(rand(n, n) for n in SIZES))).in_parts(SIZES)


def heat() -> Mask:
    return Diffusion(rings(*SIZES), num_nodes=20, lam=rand(3)).in_parts(SIZES)


def walk() -> Mask:
    walks = random_walks(rings(*SIZES), num_nodes=20, num_walks=4, num_steps=2)
    return WalkKernel(walks, rand(2)).in_parts(SIZES)


class TestChosenParts(MaskContract):
    def make(self) -> Mask:
        return ChosenParts(dense(), (0, 3, 4))


class TestChosenPartsOfHeat(MaskContract):
    def make(self) -> Mask:
        return ChosenParts(heat(), (2, 1))


@pytest.mark.parametrize("make", [dense, heat, walk])
def test_blocks_and_entries(make):
    mask = make()
    for some in (mask, ChosenParts(mask, (4, 0, 1, 2)), ChosenParts(mask, (1, 3))):
        matrix, sizes = some.dense(), some.part_sizes
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        pairs = [(starts, sizes), ([0], [sum(sizes)]), ([0, starts[-1]], [starts[-1], sizes[-1]])]
        for begin, size in pairs:
            blocks = some.diagonal_blocks(begin, size)
            assert blocks.shape[-3:] == (len(size), max(size), max(size))
            wanted = torch.zeros_like(blocks)
            for b, (i, n) in enumerate(zip(begin, size, strict=True)):
                wanted[..., b, :n, :n] = matrix[..., i : i + n, i : i + n]
            if make is heat and blocks.shape[-1] > max(sizes):
                continue  # round-off between graphs is 0 there, and not in blocks that hold several
            assert_close(blocks, wanted)
        row, column = torch.randint(some.length, (2, 40))
        assert_close(some.at(row, column), matrix[..., row, column])
        assert some.at(row[:0], column[:0]).shape[-1] == 0


def test_entries_of_any_mask_by_rows(monkeypatch):
    mask = Toeplitz(rand(3, 7, 9), (4, 5))
    row, column = torch.randint(20, (2, 50))
    for at_once in (1, 45, 1 << 22):
        monkeypatch.setattr("vit_rpe.masks.base._ENTRIES_AT_ONCE", at_once)
        assert_close(mask.at(row, column), mask.dense()[..., row, column])


def test_the_finest_parts_of_a_graph():
    for edges, n, parts in [
        (rings(*SIZES), 20, SIZES),
        (torch.tensor([[0, 2, 4, 4], [2, 0, 4, 5]]), 8, (3, 1, 2, 1, 1)),  # node 1 is between
        (torch.empty(2, 0, dtype=torch.int64), 3, (1, 1, 1)),
        (torch.tensor([[5], [0]]), 6, (6,)),
    ]:
        matrix = SparseMatrix(edges[0], edges[1], (n, n))
        assert tuple(matrix.parts().tolist()) == tuple(parts)
    edges = random_graph(30, 20)
    parts = SparseMatrix(edges[0], edges[1], (30, 30)).parts().tolist()
    border = torch.tensor(parts).cumsum(0)[:-1]
    crossed = ((edges.amin(0)[:, None] < border) & (edges.amax(0)[:, None] >= border)).any(0)
    assert sum(parts) == 30 and not crossed.any()
