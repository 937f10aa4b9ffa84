"""Masks on trees: any tree, both algorithms, long paths, and what is refused."""

import time

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
)
from tests.zoo import rand, randn
from vit_rpe.graph import (
    TreeExponential,
    TreeFunction,
    both_directions,
    centroid,
    grid_edges,
    shortest_path_mask,
    shortest_paths,
)
from vit_rpe.graph.forest import Forest
from vit_rpe.masks import Toeplitz

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(sizes=SIZES, a=st.floats(-2, 0.5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_exponential_on_any_forest(sizes, a, seed):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    weight = symmetric_weights(edges)
    mask = TreeExponential(edges, weight, a, 0.3, n)
    by_shortest_paths = shortest_path_mask(edges, lambda z: (a * z + 0.3).exp(), n, weight)
    torch.testing.assert_close(mask.dense(), by_shortest_paths.dense())
    torch.testing.assert_close(mask.rows(0, n), mask.dense())
    x = randn(n, 2)
    torch.testing.assert_close(mask.matmul(x), by_shortest_paths.matmul(x), rtol=1e-9, atol=1e-9)


@given(sizes=SIZES, seed=st.integers(0, 1000), algorithm=st.sampled_from(["centroid", "histogram"]))
@settings(max_examples=30, deadline=None)
def test_any_function_on_any_forest(sizes, seed, algorithm):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    values = randn(max(sizes) + 2)
    mask = TreeFunction(edges, values, n, algorithm)
    expected = shortest_path_mask(edges, values, n)
    torch.testing.assert_close(mask.dense(), expected.dense())
    x = randn(n, 3)
    torch.testing.assert_close(mask.matmul(x), expected.matmul(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", TREES)
def test_large_trees_with_many_splits(kind):
    n = 1300
    edges = random_tree(n, kind)
    mask = TreeFunction(edges, randn(n), n, "centroid")
    assert len(mask._separators.rounds) >= 4
    x = randn(n, 2)
    expected = shortest_path_mask(edges, mask.values).matmul(x)
    torch.testing.assert_close(mask.matmul(x), expected, rtol=1e-9, atol=1e-8)
    weight = symmetric_weights(edges)
    for a in (-0.2, 0.01):
        mask = TreeExponential(edges, weight, a, 0.0, n)
        expected = shortest_path_mask(edges, lambda z, a=a: (a * z).exp(), n, weight).matmul(x)
        torch.testing.assert_close(mask.matmul(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", TREES)
def test_lengths_of_both_signs(kind):
    """Some blocks of blocks along a path; learned lengths may become negative in training."""
    n = 600
    edges = random_tree(n, kind)
    weight = (signed_weights(edges) / 20).requires_grad_()
    mask = TreeExponential(edges, torch.ones(edges.shape[1]), -0.7).with_values(edge_weight=weight)
    x, g = randn(n, 2), randn(n, 2)
    ours, wanted = mask.matmul(x), mask.dense() @ x
    torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)
    grads = (torch.autograd.grad(out, weight, g)[0] for out in (ours, wanted))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["path", "caterpillar"])
def test_long_hankel_matrices_go_through_ffts(kind, monkeypatch):
    monkeypatch.setattr(centroid, "_DIRECT", 24)
    n = 900
    edges = random_tree(n, kind)
    mask = TreeFunction(edges, randn(n), n, "centroid")
    assert max(depth for step in mask._separators.rounds for depth, _ in step.depths) > 96
    x = randn(n, 1).requires_grad_()
    expected = shortest_path_mask(edges, mask.values)
    torch.testing.assert_close(mask.matmul(x), expected.matmul(x), rtol=1e-9, atol=1e-8)
    values = mask.values.requires_grad_()
    g = randn(n, 1)
    grad = torch.autograd.grad(mask.matmul(x), (x, values), g)
    wanted = torch.autograd.grad(shortest_path_mask(edges, values).matmul(x), (x, values), g)
    torch.testing.assert_close(grad, wanted, rtol=1e-8, atol=1e-8)


def test_many_blocks_along_heavy_paths_and_their_gradients():
    n = 1500  # more than two levels of blocks
    edges = random_forest(300, n - 300)
    weight = (symmetric_weights(edges) / 20).requires_grad_()
    a = torch.tensor([-0.4, 0.02], dtype=torch.float64, requires_grad=True)
    mask = TreeExponential(edges, weight, a, 0.0, n)
    x, g = randn(n, 1), randn(2, n, 1)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x)
    grad = torch.autograd.grad(mask.matmul(x), (weight, a), g)
    wanted = torch.autograd.grad(mask.dense() @ x, (weight, a), g)
    torch.testing.assert_close(grad, wanted, rtol=1e-6, atol=1e-6)


def test_growing_exponentials_lose_no_digits():
    """By the paper's recursion, w_i = e^{aW} w_p + (1 - e^{2aW}) s_i, nothing would be left."""
    n = 60
    edges = random_tree(n, "path")
    mask = TreeExponential(edges, None, 1.0, 0.0, n)
    x = rand(n, 1)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x, rtol=1e-12, atol=0.0)


def test_a_path_is_a_toeplitz_matrix():
    n = 12
    values = randn(2, n)
    mask = TreeFunction(grid_edges((n,)), values)
    toeplitz = Toeplitz(torch.cat([values[:, 1:].flip(-1), values], -1), (n,))
    torch.testing.assert_close(mask.dense(), toeplitz.dense())
    x = randn(2, n, 3)
    for algorithm in ("auto", "centroid", "histogram"):
        mask = TreeFunction(grid_edges((n,)), values, algorithm=algorithm)
        torch.testing.assert_close(mask.matmul(x), toeplitz.matmul(x))


@pytest.mark.slow
@pytest.mark.parametrize("make", [TreeExponential, TreeFunction])
def test_a_path_of_100000_nodes(make):
    n = 100_000
    edges, x = grid_edges((n,)), torch.randn(n, 64)
    values = torch.exp(-0.1 * torch.arange(float(n)))
    start = time.perf_counter()
    mask = make(edges, None, -0.1, 0.0, n) if make is TreeExponential else make(edges, values, n)
    built = time.perf_counter()
    out = mask.matmul(x)
    took = time.perf_counter() - built
    assert built - start < 10 and took < 6  # far above what it takes alone (docs/graphs.md)
    for i in (0, 1234, 99_999):
        near = torch.arange(max(0, i - 300), min(n, i + 300))
        expected = torch.exp(-0.1 * (near - i).abs()) @ x[near]
        torch.testing.assert_close(out[i], expected, rtol=1e-3, atol=1e-3)


def test_the_algorithm_follows_the_diameter():
    values = rand(5000)
    assert TreeFunction(random_tree(5000, "star"), values).by_histogram
    assert not TreeFunction(random_tree(5000, "caterpillar"), values).by_histogram
    assert TreeFunction(random_tree(5000, "path"), values).along is not None


@given(sizes=SIZES, seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_diameter_ancestors_and_sizes(sizes, seed):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    forest = Forest(edges, n)
    distance = shortest_paths(edges, n)
    assert forest.diameter == distance[distance.isfinite()].max()
    nodes = torch.arange(n)
    hops = forest.hops(nodes[:, None], nodes).double()
    torch.testing.assert_close(hops.masked_fill(hops < 0, torch.inf), distance)
    below = forest.descendants()
    assert (below.sum(1) == forest.size).all()
    assert forest.level.max() <= torch.tensor(float(n)).log2()


# --- what is refused ---------------------------------------------------------------------------


def undirected(*pairs: tuple[int, int]) -> torch.Tensor:
    return both_directions(torch.tensor(pairs).mT)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (undirected((0, 1), (1, 2), (2, 3), (3, 1)), "cycle (2 - 1 - 3|3 - 1 - 2) - [23]"),
        (torch.tensor([[0, 1, 1], [1, 0, 1]]), "self-loop at node 1"),
        (undirected((0, 1), (0, 1)), r"edge \(0, 1\) more than once|edge \(1, 0\) more than once"),
        (torch.tensor([[0, 1], [1, 2]]), r"edge \(0, 1\) without \(1, 0\)"),
    ],
)
def test_what_is_no_forest_is_refused(edges, message):
    for make in (
        lambda: TreeExponential(edges, None, -1.0, 0.0, 5),
        lambda: TreeFunction(edges, rand(9), 5),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_long_cycle_is_named_in_short():
    n = 5000
    ring = undirected(*((i, (i + 1) % n) for i in range(n)))
    with pytest.raises(ValueError, match=r"cycle \d+( - \d+){5} - \.\.\. - "):
        Forest(ring)


def test_values_must_reach_the_diameter_and_may_exceed_it():
    edges = grid_edges((5,))
    with pytest.raises(ValueError, match=r"diameter 4 needs values of shape \(\.\.\., 5\) or more"):
        TreeFunction(edges, rand(4))
    values = rand(8)
    long = TreeFunction(edges, values, algorithm="centroid").dense()
    torch.testing.assert_close(long, TreeFunction(edges, values[:5]).dense())
    mask = TreeFunction(edges, values)
    with pytest.raises(ValueError, match="got \\(2, 3\\)"):
        mask.with_values(values=rand(2, 3))
    with pytest.raises(ValueError, match="algorithm must be one of auto, centroid, histogram"):
        TreeFunction(edges, values, algorithm="fft")


def test_different_trees_have_weight_zero_whatever_the_sign():
    edges = undirected((0, 1), (2, 3))
    for a in (-1.0, 1.0, 0.0):
        dense = TreeExponential(edges, None, a, 0.0, 5).dense()
        assert (dense[:2, 2:] == 0).all() and (dense[4, :4] == 0).all() and dense[4, 4] == 1
    assert TreeExponential(EMPTY, None, -1.0, 0.0, 3).dense().equal(torch.eye(3).double())


def test_other_lengths_must_fit_the_edges():
    mask = TreeExponential(grid_edges((4,)), None, -1.0)
    assert mask.with_values(a=-0.5).a == -0.5
    with pytest.raises(ValueError, match=r"6 edges need edge_weight of shape \(6,\), got \(3,\)"):
        mask.with_values(edge_weight=rand(3))
