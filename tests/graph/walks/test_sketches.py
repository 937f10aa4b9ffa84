"""Graph sketches are a kernel of features and topology."""

import pytest
import torch

from tests.graph.graphs import random_graph
from vit_rpe.graph import RWGNK, graphots


def test_graphots_are_a_kernel_of_features_and_topology():
    edges, x = random_graph(15, 25), torch.rand(16, 3)
    mask = RWGNK(num_walks=10)(edges, num_nodes=16)
    phi = torch.nn.functional.elu(x) + 1
    exact = mask.dense().float() * (phi @ phi.mT)
    errors = [float((g @ g.mT - exact).square().mean().sqrt())
              for g in (graphots(x, mask, dim) for dim in (64, 4096))]  # fmt: skip
    assert errors[1] < errors[0] / 4 and errors[1] < 0.05 * exact.abs().max()
    assert graphots(x, mask, 8, seed=1).equal(graphots(x, mask, 8, seed=1))
    with pytest.raises(ValueError, match=r"a mask of 16 nodes needs x of shape \(16, channels\)"):
        graphots(x[:3], mask, 8)
    with pytest.raises(ValueError, match="dim must be at least 1"):
        graphots(x, mask, 0)
