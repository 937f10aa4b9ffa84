"""What is wrong with a graph is said by name."""

import pytest
import torch

from tests.graph.graphs import EMPTY, random_forest
from tests.zoo import rand
from vit_rpe.graph import (
    Diffusion,
    TreeExponential,
    TreeFunction,
    expected_walk_kernel,
    grid_edges,
    hypercube_edges,
    random_walks,
    shortest_paths,
)
from vit_rpe.graph.edges import connected_components
from vit_rpe.graph.forest import Forest

MAKERS = {
    "TreeExponential": lambda e, n, w: TreeExponential(e, w, -1.0, 0.0, n),
    "TreeFunction": lambda e, n, w: TreeFunction(e, rand(9), n),
    "Diffusion": lambda e, n, w: Diffusion(e, 1.0, "laplacian", n, edge_weight=w),
    "random_walks": lambda e, n, w: random_walks(e, 2, 3, n, edge_weight=w),
    "expected_walk_kernel": lambda e, n, w: expected_walk_kernel(e, 3, num_nodes=n, edge_weight=w),
    "shortest_paths": lambda e, n, w: shortest_paths(e, n, w),
}
PATH = grid_edges((3,))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_bad_indices(make):
    for edges, n, message in [
        (torch.tensor([[0, 5], [5, 0]]), 3, r"edge 0 joins \[0, 5\], but nodes go from 0 to 2"),
        (torch.tensor([[0, -1], [-1, 0]]), 3, r"edge 0 joins \[0, -1\]"),
        (PATH.int(), 3, "edge_index must be int64 of shape"),
        (PATH.mT, 3, r"edge_index must be int64 of shape \(2, E\), got torch.int64 \(4, 2\)"),
        (PATH.tolist(), 3, "edge_index must be a tensor, got list"),
        (EMPTY, 0, "at least one token, got length 0"),
        (EMPTY, None, "at least one token, got length 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(edges, n, None)


@pytest.mark.parametrize("make", [m for name, m in MAKERS.items() if name != "TreeFunction"])
def test_bad_weights(make):
    for weight, message in [
        (torch.tensor([1.0, torch.nan, 1.0, torch.nan]), "edge_weight must be .*finite.* got nan"),
        (torch.tensor([1.0, torch.inf, 1.0, 1.0]), "got inf for edge 1"),
        (torch.ones(3), r"4 edges need a real edge_weight of shape \(4,\), got"),
        (torch.ones(4, dtype=torch.int64), "real edge_weight"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(PATH, 3, weight)


@pytest.mark.parametrize("name", ["Diffusion", "random_walks", "shortest_paths"])
def test_negative_weights(name):
    weight = torch.tensor([1.0, -2.0, 1.0, -2.0])
    with pytest.raises(ValueError, match="not negative, got -2.0 for edge 1"):
        MAKERS[name](PATH, 3, weight)


@pytest.mark.parametrize("name", ["TreeExponential", "Diffusion"])
def test_uneven_weights(name):
    weight = torch.tensor([1.0, 2.0, 1.0, 3.0])
    with pytest.raises(ValueError, match=r"same in both directions, got 2.0 for \(1, 2\) and 3.0"):
        MAKERS[name](PATH, 3, weight)


def test_the_last_node_is_found():
    assert Diffusion(PATH).length == 3
    assert TreeFunction(PATH, rand(3)).length == 3


def test_lattices():
    assert grid_edges((2, 3)).shape == (2, 14)
    assert hypercube_edges(3).shape == (2, 24) and hypercube_edges(0).shape == (2, 0)
    with pytest.raises(ValueError, match="dimensions, got -1"):
        hypercube_edges(-1)


@pytest.mark.parametrize("sizes", [(1,), (500,), (7, 4, 1, 30), (64, 64, 64, 64, 64)])
def test_connected_components_are_the_trees_of_a_forest(sizes):
    edges = random_forest(*sizes)
    tree = Forest(edges, sum(sizes)).tree
    once = edges[:, edges[0] < edges[1]]
    assert connected_components(*once, sum(sizes)).equal(tree)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_gradient_to_the_weights_is_given_or_refused(make):
    weight = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        make(PATH, 3, weight)
    made = make(PATH, 3, weight.detach())
    if isinstance(made, TreeFunction):  # has no use for weights
        return
    if isinstance(made, TreeExponential):
        make(PATH, 3, weight).matmul(torch.rand(3, 1)).sum().backward()
        assert weight.grad is not None and (weight.grad != 0).all()
    else:
        with pytest.raises(ValueError, match="edge_weight requires a gradient, but this mask"):
            make(PATH, 3, weight)
