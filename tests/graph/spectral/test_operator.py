"""Matrices of a graph: their spectrum, and the order of their nodes."""

import sys

import numpy as np
import pytest
import torch

from tests.graph.graphs import random_graph, random_tree, symmetric_weights
from tests.graph.spectral.definitions import matrices
from tests.zoo import rand, randn
from vit_rpe.graph import Diffusion
from vit_rpe.graph.spectral.operator import KINDS
from vit_rpe.masks import csr


@pytest.mark.parametrize("kind", ["laplacian", "adjacency"])
def test_the_interval_holds_the_spectrum_of_hub_graphs(kind):
    """A degree bound would be 9 times too wide for a star: its spectral radius is sqrt(degree)."""
    n = 400
    edges = random_tree(n, "star")
    interval = Diffusion(edges, num_nodes=n, kind=kind).operator.interval
    spectrum = np.linalg.eigvalsh(matrices(edges, n)[kind].toarray())
    assert interval.low <= spectrum[0] + 1e-9 and spectrum[-1] <= interval.high + 1e-9
    width = spectrum[-1] - spectrum[0]
    assert interval.high - interval.low <= 1.1 * width


@pytest.mark.parametrize("scipy_is_there", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_columns_and_the_order_of_nodes_change_nothing(kind, scipy_is_there, monkeypatch):
    monkeypatch.setattr(csr, "_CACHE", 64)  # eight columns at a time
    if not scipy_is_there:
        monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", None)
    edges = random_graph(30, 50, loops=True)
    weight = symmetric_weights(edges)
    mask = Diffusion(edges, weight, num_nodes=33, lam=rand(3), kind=kind, tol=1e-13)
    moved = not mask.operator.order.equal(torch.arange(33))
    assert moved == scipy_is_there
    x = randn(3, 33, 21)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x)
