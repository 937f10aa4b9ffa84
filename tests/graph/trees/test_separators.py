"""Balanced separators, with Hankel matrices by FFT."""

import pytest
import torch

from tests.graph.graphs import random_tree
from tests.zoo import randn
from vit_rpe.graph import TreeFunction, shortest_path_mask
from vit_rpe.graph.trees import separators


@pytest.mark.parametrize("kind", ["path", "caterpillar"])
def test_long_hankel_matrices_go_through_ffts(kind, monkeypatch):
    monkeypatch.setattr(separators, "_DIRECT", 24)
    n = 900
    edges = random_tree(n, kind)
    mask = TreeFunction(edges, randn(n), num_nodes=n, algorithm="centroid")
    assert max(depth for step in mask._separators.rounds for depth, _ in step.depths) > 96
    x = randn(n, 1).requires_grad_()
    expected = shortest_path_mask(edges, f=mask.values)
    torch.testing.assert_close(mask.matmul(x), expected.matmul(x), rtol=1e-9, atol=1e-8)
    values = mask.values.requires_grad_()
    g = randn(n, 1)
    grad = torch.autograd.grad(mask.matmul(x), (x, values), g)
    wanted = torch.autograd.grad(shortest_path_mask(edges, f=values).matmul(x), (x, values), g)
    torch.testing.assert_close(grad, wanted, rtol=1e-8, atol=1e-8)
