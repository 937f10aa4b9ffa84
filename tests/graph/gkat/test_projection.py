"""Widths that come with the first x."""

import copy

import pytest
import torch

from tests.graph.graphs import random_tree
from vit_rpe.graph import GKATConv


@pytest.mark.parametrize("feature_map", ["softmax", "additive"])
def test_channels_of_the_first_x(feature_map):
    options = {"heads": 2, "feature_map": feature_map, "residual": True}
    torch.manual_seed(0)
    lazy = GKATConv(-1, 4, **options)
    assert repr(lazy).startswith("GKATConv(-1, 4, heads=2")
    untouched = copy.deepcopy(lazy)
    lazy.reset_parameters()  # there is nothing to reset yet
    x, edges = torch.randn(7, 6), random_tree(7)
    assert lazy(x, edges).shape == (7, 8)
    assert repr(lazy).startswith("GKATConv(6, 4, heads=2")
    assert type(lazy.value).__name__ == "Projection"
    bound = (6 / (6 + 8)) ** 0.5  # Glorot's
    assert 0.5 * bound < float(lazy.value.weight.abs().max()) <= bound
    whole = GKATConv(6, 4, **options)
    whole.load_state_dict(lazy.state_dict())
    untouched.load_state_dict(whole.state_dict())
    assert untouched.eval()(x, edges).equal(whole.eval()(x, edges))
    with pytest.raises(ValueError, match=r"needs x of shape \(nodes, 6\), got \(7, 5\)"):
        lazy(torch.randn(7, 5), edges)
