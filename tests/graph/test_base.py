"""Masks on one graph with other values."""

import pytest
import torch

from tests.graph.graphs import GRAPH_ZOO
from tests.zoo import randn


def test_other_values_on_the_same_graph():
    mask = GRAPH_ZOO["diffusion_laplacian"]()
    other = mask.with_values(lam=mask.lam * 2)
    x = randn(mask.length, 2)
    twice = mask.matmul(mask.matmul(x))
    torch.testing.assert_close(other.matmul(x), twice)
    assert other.operator is mask.operator
    with pytest.raises(ValueError, match="has values lam, got 'rate'"):
        mask.with_values(rate=mask.lam)
