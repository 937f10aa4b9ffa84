"""Digests by which graphs are recognized."""

import torch

from tests.graph.graphs import random_graph, rings
from vit_rpe.graph.identity import edge_fingerprints, graph_digest


def test_a_digest_stays_what_it_was():
    """It is part of the seeds of walks, and of the files that keep them."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    assert graph_digest(edges, None, num_nodes=3) == "bff89ae4fdd4eec220d1c555e4bf594c"
    assert graph_digest(edges, torch.ones(4), num_nodes=3) == "3a73ec2a9ae5d421693bb40bd3cdae67"


def test_a_digest_knows_nodes_edges_and_weights():
    edges = random_graph(9, 14)
    weight = torch.rand(edges.shape[1])
    digests = {
        graph_digest(edges, None, num_nodes=9),
        graph_digest(edges, None, num_nodes=10),
        graph_digest(edges.flip(1), None, num_nodes=9),
        graph_digest(edges, weight, num_nodes=9),
        graph_digest(edges, weight.bfloat16(), num_nodes=9),
    }
    assert len(digests) == 5
    assert graph_digest(edges.clone(), None, num_nodes=9) in digests


def test_fingerprints_of_a_batch_are_those_of_its_graphs():
    batch, sizes = rings(5, 7, 4), [5, 7, 4]
    ptr = torch.tensor([0, 5, 12, 16])
    order = torch.randperm(batch.shape[1])  # edges have no order
    found = edge_fingerprints(batch[:, order], None, ptr=ptr)
    single = [edge_fingerprints(rings(n), None, ptr=torch.tensor([0, n])) for n in sizes]
    assert found.equal(torch.cat(single)) and len(found.unique()) == 3
    weight = torch.rand(batch.shape[1])
    assert not edge_fingerprints(batch, weight, ptr=ptr).equal(found)
