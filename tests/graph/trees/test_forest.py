"""Rooted forests: sizes, ancestors, distances, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import random_forest, undirected
from tests.zoo import rand
from vit_rpe.graph import TreeExponential, TreeFunction, shortest_paths
from vit_rpe.graph.trees.forest import Forest

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(sizes=SIZES, seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_diameter_ancestors_and_sizes(sizes, seed):
    torch.manual_seed(seed)
    edges, n = random_forest(*sizes), sum(sizes)
    forest = Forest(edges, num_nodes=n)
    distance = shortest_paths(edges, num_nodes=n)
    assert forest.diameter == distance[distance.isfinite()].max()
    nodes = torch.arange(n)
    hops = forest.hops(nodes[:, None], nodes).double()
    torch.testing.assert_close(hops.masked_fill(hops < 0, torch.inf), distance)
    below = forest.descendants()
    assert (below.sum(1) == forest.size).all()
    assert forest.level.max() <= torch.tensor(float(n)).log2()


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
        lambda: TreeExponential(edges, num_nodes=5),
        lambda: TreeFunction(edges, rand(9), num_nodes=5),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_long_cycle_is_named_in_short():
    n = 5000
    ring = undirected(*((i, (i + 1) % n) for i in range(n)))
    with pytest.raises(ValueError, match=r"cycle \d+( - \d+){5} - \.\.\. - "):
        Forest(ring)
