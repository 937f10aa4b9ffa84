"""Shortest paths on any graph, and masks of their lengths."""

import sys

import pytest
import torch

from tests.graph.graphs import GRAPH
from tests.zoo import rand
from vit_rpe.extras import MissingExtra
from vit_rpe.graph import shortest_path_mask, shortest_paths


def test_shortest_paths_on_a_weighted_graph():
    edges = torch.tensor([[0, 1, 0, 1, 2, 0], [1, 2, 2, 2, 0, 1]])
    weight = torch.tensor([1.0, 1.0, 5.0, 0.5, 2.0, 3.0])
    expected = torch.tensor([[0, 1, 1.5, torch.inf], [2.5, 0, 0.5, torch.inf],
                             [2, 3, 0, torch.inf], [torch.inf] * 3 + [0]])  # fmt: skip
    torch.testing.assert_close(shortest_paths(edges, weight, num_nodes=4).float(), expected)


def test_shortest_path_mask_takes_functions_and_tables():
    rate = rand(3).requires_grad_()
    mask = shortest_path_mask(GRAPH, num_nodes=11, f=lambda z: (-rate[:, None, None] * z).exp())
    assert mask.dense().shape == (3, 11, 11)
    apart = torch.isinf(shortest_paths(GRAPH, num_nodes=11))
    assert apart.any() and (mask.dense()[:, apart] == 0).all()
    mask.dense().sum().backward()
    assert torch.isfinite(rate.grad).all()
    for f, weight, message in [
        (rand(2), None, r"need values of shape \(\.\.\., \d\) or more, got \(2,\)"),
        (rand(30), torch.ones(GRAPH.shape[1]), "without edge_weight"),
        (lambda z: z.sum(), None, r"keep the shape \(11, 11\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            shortest_path_mask(GRAPH, weight, num_nodes=11, f=f)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(
        MissingExtra, match=r"shortest_paths needs .*pip install 'vit_rpe\[graph\]'"
    ):
        shortest_paths(GRAPH, num_nodes=11)
