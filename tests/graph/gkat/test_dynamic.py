"""Walks that follow the attention."""

import torch
from torch.testing import assert_close

from vit_rpe.graph import RWGNK, DynamicWalks, GKATConv


def test_dynamic_walks_follow_the_attention():
    """From the hub of a star, the leaf that is attended to most is visited most."""
    star = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    conv = GKATConv(2, 2, feature_map="relu", bias=False)
    with torch.no_grad():
        for linear in (conv.query, conv.key):
            linear.weight.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 0.0], [4.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    walks = DynamicWalks(star, walks=RWGNK(num_walks=4000, num_steps=1))
    before = walks.mask
    expected = conv.edge_attention(x, star, before)[0, :3]
    after = walks.redraw(conv, x)
    assert after is walks.mask and after is not before
    counts = after.walks.nodes[0, :, 1].bincount(minlength=4)[1:] / 4000
    assert_close(counts, expected / expected.sum(), rtol=0, atol=0.03)
    assert counts[2] == 0
    again = walks.redraw(conv, torch.zeros(4, 2))  # nothing is attended to: all edges alike
    counts = again.walks.nodes[0, :, 1].bincount(minlength=4)[1:] / 4000
    assert_close(counts, torch.full((3,), 1 / 3), rtol=0, atol=0.03)
