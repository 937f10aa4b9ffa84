"""Masks that decay or grow exponentially with the distance in a tree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import (
    EMPTY,
    TREES,
    random_forest,
    random_tree,
    signed_weights,
    symmetric_weights,
    undirected,
)
from tests.zoo import rand, randn
from vit_rpe.graph import TreeExponential, grid_edges, shortest_path_mask

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(sizes=SIZES, a=st.floats(-2, 0.5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_exponential_on_any_forest(sizes, a, seed):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    weight = symmetric_weights(edges)
    mask = TreeExponential(edges, weight, num_nodes=n, a=a, b=0.3)
    by_shortest_paths = shortest_path_mask(
        edges, weight, num_nodes=n, f=lambda z: (a * z + 0.3).exp()
    )
    torch.testing.assert_close(mask.dense(), by_shortest_paths.dense())
    torch.testing.assert_close(mask.rows(0, n), mask.dense())
    x = randn(n, 2)
    torch.testing.assert_close(mask.matmul(x), by_shortest_paths.matmul(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", TREES)
def test_lengths_of_both_signs(kind):
    """Some blocks of blocks along a path; learned lengths may become negative in training."""
    n = 600
    edges = random_tree(n, kind)
    weight = (signed_weights(edges) / 20).requires_grad_()
    mask = TreeExponential(edges, torch.ones(edges.shape[1]), a=-0.7).with_values(
        edge_weight=weight
    )
    x, g = randn(n, 2), randn(n, 2)
    ours, wanted = mask.matmul(x), mask.dense() @ x
    torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)
    grads = (torch.autograd.grad(out, weight, g)[0] for out in (ours, wanted))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


def test_many_blocks_along_heavy_paths_and_their_gradients():
    n = 1500  # more than two levels of blocks
    edges = random_forest(300, n - 300)
    weight = (symmetric_weights(edges) / 20).requires_grad_()
    a = torch.tensor([-0.4, 0.02], dtype=torch.float64, requires_grad=True)
    mask = TreeExponential(edges, weight, num_nodes=n, a=a)
    x, g = randn(n, 1), randn(2, n, 1)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x)
    grad = torch.autograd.grad(mask.matmul(x), (weight, a), g)
    wanted = torch.autograd.grad(mask.dense() @ x, (weight, a), g)
    torch.testing.assert_close(grad, wanted, rtol=1e-6, atol=1e-6)


def test_growing_exponentials_lose_no_digits():
    """By the paper's recursion, w_i = e^{aW} w_p + (1 - e^{2aW}) s_i, nothing would be left."""
    n = 60
    edges = random_tree(n, "path")
    mask = TreeExponential(edges, num_nodes=n, a=1.0)
    x = rand(n, 1)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x, rtol=1e-12, atol=0.0)


def test_different_trees_have_weight_zero_whatever_the_sign():
    edges = undirected((0, 1), (2, 3))
    for a in (-1.0, 1.0, 0.0):
        dense = TreeExponential(edges, num_nodes=5, a=a).dense()
        assert (dense[:2, 2:] == 0).all() and (dense[4, :4] == 0).all() and dense[4, 4] == 1
    assert TreeExponential(EMPTY, num_nodes=3).dense().equal(torch.eye(3).double())


def test_other_lengths_must_fit_the_edges():
    mask = TreeExponential(grid_edges((4,)))
    assert mask.with_values(a=-0.5).a == -0.5
    with pytest.raises(ValueError, match=r"6 edges need edge_weight of shape \(6,\), got \(3,\)"):
        mask.with_values(edge_weight=rand(3))
