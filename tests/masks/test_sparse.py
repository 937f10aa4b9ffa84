"""Sparse masks: parallel edges, gradients, and what is refused."""

import pytest
import torch

from vit_rpe.masks import Sparse


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
