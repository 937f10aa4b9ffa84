"""When walks are drawn: in training, in evaluation, for known graphs."""

import copy

import torch

from tests.graph.gkat.layers import WALKS, pair
from tests.graph.graphs import random_graph, random_tree
from vit_rpe.graph import RWGNK, random_walks
from vit_rpe.graph.gkat import makers
from vit_rpe.graph.walks import kernel


def test_walks_are_drawn_afresh_in_training():
    conv, _ = pair("elu")
    edges, x = random_graph(30, 60), torch.randn(30, 5)
    conv.train()
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws += [conv(x, edges), conv(x, edges)]
    assert not draws[0].equal(draws[1]) and not draws[0].equal(draws[4])
    assert draws[0].equal(draws[2]) and draws[1].equal(draws[3])
    conv.eval()
    assert conv(x, edges).equal(conv(x, mask=WALKS(edges, num_nodes=30)))


def test_graphs_that_were_seen_are_not_walked_again(monkeypatch):
    walked = []
    monkeypatch.setattr(
        kernel, "random_walks", lambda *a, **o: walked.append(a) or random_walks(*a, **o)
    )
    conv, _ = pair("elu")
    x, weight = torch.randn(9, 5), torch.rand(16)
    trees = [random_tree(9) for _ in range(makers._KEPT + 3)]
    out = conv(x, trees[0])
    assert conv(x, trees[0].clone()).equal(out) and len(walked) == 1
    assert not conv(x, trees[0], weight).equal(out) and len(walked) == 2
    conv(torch.randn(10, 5), trees[0])
    assert len(walked) == 3
    trees[0][:, 0] = trees[0][0, 0]  # the same tensor, another graph
    assert not conv(x, trees[0]).equal(out) and len(walked) == 4
    for tree in trees:
        conv(x, tree)
    assert len(conv._recent) == makers._KEPT
    assert len(copy.deepcopy(conv)._recent) == 0
    made = len(walked)
    conv(x, trees[-1])
    assert len(walked) == made
    conv.make_mask = RWGNK(num_walks=3)
    conv(x, trees[-1])
    assert len(walked) == made + 1
