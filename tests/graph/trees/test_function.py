"""Masks on trees: any tree, both algorithms, long paths, and what is refused."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import TREES, random_forest, random_tree, symmetric_weights
from tests.zoo import rand, randn
from vit_rpe.graph import TreeExponential, TreeFunction, grid_edges, shortest_path_mask
from vit_rpe.masks import Toeplitz

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(sizes=SIZES, seed=st.integers(0, 1000), algorithm=st.sampled_from(["centroid", "histogram"]))
@settings(max_examples=30, deadline=None)
def test_any_function_on_any_forest(sizes, seed, algorithm):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    values = randn(max(sizes) + 2)
    mask = TreeFunction(edges, values, num_nodes=n, algorithm=algorithm)
    expected = shortest_path_mask(edges, num_nodes=n, f=values)
    torch.testing.assert_close(mask.dense(), expected.dense())
    x = randn(n, 3)
    torch.testing.assert_close(mask.matmul(x), expected.matmul(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", TREES)
def test_large_trees_with_many_splits(kind):
    n = 1300
    edges = random_tree(n, kind)
    mask = TreeFunction(edges, randn(n), num_nodes=n, algorithm="centroid")
    assert len(mask._separators.rounds) >= 4
    x = randn(n, 2)
    expected = shortest_path_mask(edges, f=mask.values).matmul(x)
    torch.testing.assert_close(mask.matmul(x), expected, rtol=1e-9, atol=1e-8)
    weight = symmetric_weights(edges)
    for a in (-0.2, 0.01):
        mask = TreeExponential(edges, weight, num_nodes=n, a=a)
        expected = shortest_path_mask(
            edges, weight, num_nodes=n, f=lambda z, a=a: (a * z).exp()
        ).matmul(x)
        torch.testing.assert_close(mask.matmul(x), expected, rtol=1e-9, atol=1e-9)


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
    mask = make(edges, a=-0.1) if make is TreeExponential else make(edges, values)
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
