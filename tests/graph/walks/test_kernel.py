"""RWGNK: its expectation, its low-rank form, its gradients."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.graphs import draw_walks, random_graph, symmetric_weights
from tests.planetoid import planetoid
from tests.zoo import randn
from vit_rpe.graph import WalkKernel, expected_walk_kernel, random_walks


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_kernel_tends_to_its_expectation(alpha):
    edges = random_graph(8, 14)
    weight = symmetric_weights(edges)
    lam = torch.tensor([0.5, 1.0], dtype=torch.float64)
    expected = expected_walk_kernel(
        edges, weight, num_nodes=9, num_steps=3, lam=lam, alpha=alpha, stop=0.1
    )
    errors = []
    for walks in (100, 10_000):
        drawn = draw_walks(edges, walks, 3, 9, edge_weight=weight, stop=0.1, seed=5)
        kernel = WalkKernel(drawn, lam, alpha)
        errors.append(float((kernel.dense() - expected.dense()).abs().max()))
    assert errors[1] < 0.05 and errors[1] < errors[0] / 3


def test_low_rank_is_the_same_mask():
    walks = draw_walks(random_graph(8, 14), 6, 3, 8)
    mask = WalkKernel(walks, 0.6)
    x = randn(8, 3)
    torch.testing.assert_close(mask.low_rank().matmul(x), mask.matmul(x))
    with pytest.raises(ValueError, match="alpha must be .* not negative, got -1"):
        WalkKernel(walks, 0.6, alpha=-1)


def test_gradients_of_a_large_graph_allocate_no_matrix():
    """40,000 x 40,000 numbers would take 6.4 GB."""
    n = 40_000
    walks = draw_walks(random_graph(n, 2 * n), 4, 3, n)
    lam = torch.tensor([0.5, 0.9], requires_grad=True)
    out = WalkKernel(walks, lam).matmul(torch.ones(n, 2))
    (grad,) = torch.autograd.grad(out.sum(), lam)
    assert torch.isfinite(grad).all() and (grad != 0).all()


@pytest.mark.slow
def test_cora():
    edges, n = planetoid("cora")
    walks = draw_walks(edges, 50, 3, n)
    mask = WalkKernel(walks)
    x = randn(n, 4)
    torch.testing.assert_close(mask.matmul(x), mask.low_rank().matmul(x))
    exact = expected_walk_kernel(edges, num_nodes=n, num_steps=3).dense()
    assert (mask.rows(0, 200) - exact[:200]).abs().mean() < 0.01


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_visits_that_cancel_are_an_empty_row(alpha):
    """With lam = -1 the steps of a walk that stays where it is add up to nothing."""
    loop = torch.tensor([[0], [0]])
    lam = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    mask = WalkKernel(draw_walks(loop, 4, 3, 2), lam, alpha)
    expected = torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double()
    x = torch.eye(2).double().requires_grad_()
    out = mask.matmul(x)
    for matrix in (
        out,
        mask.dense(),
        mask.rows(0, 2),
        mask.precomputed(x.dtype).abs_bound().dense(),
    ):
        assert matrix.isfinite().all() and matrix[1].equal(expected[1])
    tended = expected_walk_kernel(loop, num_nodes=2, num_steps=3, lam=lam, alpha=alpha)
    for matrix in (out, mask.dense(), tended.dense()):
        torch.testing.assert_close(matrix, expected)
        assert torch.autograd.grad(matrix.sum(), lam)[0].isfinite()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_entries_of_the_kernel_at_pairs(alpha):
    lam = torch.tensor([0.4, 0.9], dtype=torch.float64)
    mask = WalkKernel(
        random_walks(random_graph(12, 20), num_nodes=13, num_walks=6, num_steps=3), lam, alpha
    )
    i, j = torch.randint(13, (2, 40))
    assert_close(mask.at(i, j), mask.dense()[:, i, j])
    assert mask.at(i[:0], j[:0]).shape == (2, 0)
