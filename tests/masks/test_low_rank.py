"""Masks of low rank with sparse factors."""

import pytest
import torch

from tests.zoo import rand, randn, sparse_factor
from vit_rpe.masks import LowRank


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
