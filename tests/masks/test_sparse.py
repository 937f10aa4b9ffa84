"""Sparse masks: parallel edges, gradients, and what is refused."""

import pytest
import torch

from tests.zoo import randn
from vit_rpe.masks import Sparse
from vit_rpe.masks.csr import SparseMatrix


def test_sparse_gradients_do_not_allocate_a_dense_matrix():
    n, edges = 200_000, 400_000  # a dense gradient would take 160 GB
    weight = torch.rand(edges, requires_grad=True)
    mask = Sparse(torch.randint(0, n, (2, edges)), weight, n)
    mask.matmul(torch.rand(n, 2)).sum().backward()
    assert weight.grad is not None and weight.grad.shape == (edges,)


def test_sparse_adds_parallel_edges_and_allows_none():
    edges = torch.tensor([[0, 0, 2], [1, 1, 0]])
    dense = Sparse(edges, torch.tensor([1.0, 2.0, 5.0]), 3).dense()
    assert dense.tolist() == [[0, 3, 0], [0, 0, 0], [5, 0, 0]]
    empty = Sparse(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), 3)
    assert (empty.matmul(torch.ones(3, 1)) == 0).all() and (empty.dense() == 0).all()


def test_check_names_an_edge_that_leads_nowhere():
    mask = Sparse(torch.tensor([[0, 1], [2, 5]]), torch.ones(2), 4)
    with pytest.raises(ValueError, match=r"edge 1 joins \[1, 5\]"):
        mask.check()


def random_mask(n: int = 9, heads: int = 3) -> Sparse:
    return Sparse(torch.randint(0, n, (2, 4 * n)), randn(heads, 4 * n), n)


def test_an_edge_that_leads_nowhere_is_refused_by_the_product():
    """A sparse product would read what lies behind its columns."""
    for edge in (5, -1):
        mask = Sparse(torch.tensor([[0, 1], [2, edge]]), torch.ones(2), 4)
        with pytest.raises(ValueError, match=rf"entry 1 is at \[1, {edge}\], outside of .* 4 x 4"):
            mask.matmul(torch.rand(4, 1))


def test_edges_are_sorted_once(monkeypatch):
    made = []
    init = SparseMatrix.__init__
    monkeypatch.setattr(SparseMatrix, "__init__", lambda *a: (made.append(1), init(*a))[1])
    mask, x = random_mask(), randn(9, 2)
    for _ in range(3):
        mask.matmul(x)
        mask.abs_bound().matmul(x.abs())
    assert len(made) == 1
    mask.edge_index = mask.edge_index.flip(0)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x)
    assert len(made) == 2


def test_products_can_be_differentiated_twice():
    mask, x = random_mask(), randn(2, 3, 9, 2).requires_grad_()
    weight = mask.weight.requires_grad_()

    def product(weight, x):
        return Sparse(mask.edge_index, weight, 9).matmul(x).square().sum()

    torch.autograd.gradgradcheck(product, (weight, x))


def test_transforms_of_torch_func():
    mask, x = random_mask(), randn(3, 9, 2)

    def total(weight, x, matrix=None):
        made = Sparse(mask.edge_index, weight, 9)
        return (made.matmul(x) if matrix is None else made.dense() @ x).square().sum()

    ours = torch.func.grad(total, (0, 1))(mask.weight, x)
    wanted = torch.func.grad(lambda w, x: total(w, x, "dense"), (0, 1))(mask.weight, x)
    torch.testing.assert_close(ours, wanted)


def test_on_the_meta_device():
    edges = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    mask = Sparse(edges, torch.ones(3, 5, device="meta"), 4)
    assert mask.matmul(torch.ones(2, 3, 4, 6, device="meta")).shape == (2, 3, 4, 6)


def test_autocast_leaves_products_in_full_precision():
    mask, x = random_mask(), torch.randn(3, 9, 4)
    mask.weight = mask.weight.float()
    expected = mask.matmul(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert mask.matmul(x).equal(expected)
