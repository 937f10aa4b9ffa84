"""Graphs that are known by a formula."""

import pytest

from vit_rpe.graph import grid_edges, hypercube_edges


def test_lattices():
    assert grid_edges((2, 3)).shape == (2, 14)
    assert hypercube_edges(3).shape == (2, 24) and hypercube_edges(0).shape == (2, 0)
    with pytest.raises(ValueError, match="dimensions, got -1"):
        hypercube_edges(-1)
