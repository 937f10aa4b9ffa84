"""Masks of low rank with sparse factors."""

import pytest
import torch

from tests.zoo import rand, randn, sparse_factor
from vit_rpe.masks import LowRank
from vit_rpe.masks.csr import SparseMatrix


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_low_rank_of_sparse_factors(layout):
    dense_u, dense_v = sparse_factor(9, 5), sparse_factor(9, 5)

    def convert(t: torch.Tensor) -> torch.Tensor:
        return t.to_sparse() if layout == "coo" else t.to_sparse_csr()

    mask = LowRank(convert(dense_u), convert(dense_v))
    mask.check()
    x = randn(2, 9, 4)
    expected = dense_u @ dense_v.T
    torch.testing.assert_close(mask.dense(), expected)
    torch.testing.assert_close(mask.matmul(x), expected @ x)
    torch.testing.assert_close(mask.rows(2, 7), expected[2:7])


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_reach_sparse_values(layout):
    pattern = sparse_factor(7, 4).to_sparse().coalesce()
    crow = pattern.to_sparse_csr().crow_indices()
    other, x = rand(7, 4), randn(2, 7, 3)

    def product(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if layout == "coo":
            u = torch.sparse_coo_tensor(pattern.indices(), values, (7, 4))
        else:
            u = torch.sparse_csr_tensor(crow, pattern.indices()[1], values, (7, 4))
        return LowRank(u, other).matmul(x)

    values = pattern.values().clone().requires_grad_()
    torch.autograd.gradcheck(product, (values, x.requires_grad_()))


def test_rows_of_columns_suit_sparse_factors():
    dense = sparse_factor(9, 5)
    assert LowRank(dense.to_sparse(), dense).prefers_row_major
    assert LowRank(dense, dense.to_sparse_csr()).prefers_row_major
    assert not LowRank(dense, dense).prefers_row_major


def test_a_shared_factor_is_sorted_once(monkeypatch):
    made = []
    init = SparseMatrix.__init__
    monkeypatch.setattr(SparseMatrix, "__init__", lambda *a: (made.append(1), init(*a))[1])
    dense = sparse_factor(9, 5)
    factor = dense.to_sparse()
    mask, x = LowRank(factor, factor), randn(9, 2)
    for _ in range(3):
        torch.testing.assert_close(mask.matmul(x), dense @ dense.T @ x)
    assert len(made) == 1
    mask.u = (2 * dense).to_sparse()
    torch.testing.assert_close(mask.matmul(x), 2 * dense @ dense.T @ x)
