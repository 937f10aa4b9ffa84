"""GKAT among PyG's own: Sequential, batches, models and the transform that keeps Psi."""

import sys

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import Sequential  # noqa: E402

import vit_rpe.graph  # noqa: E402
from tests.graph.gkat.batches import graphs  # noqa: E402
from tests.graph.graphs import random_tree  # noqa: E402
from vit_rpe.extras import MissingExtra  # noqa: E402
from vit_rpe.graph import (  # noqa: E402
    GKATConv,
    GKATGraphClassifier,
    GKATNodeClassifier,
    RandomWalkKernel,
    RandomWalkMask,
    WalkKernel,
    walk_mask,
)


def test_in_pygs_sequential():
    model = Sequential("x, edge_index", [
        (GKATConv(5, 4, 2), "x, edge_index -> x"),
        torch.nn.ELU(),
        (GKATConv(8, 3, concat=False), "x, edge_index -> x"),
    ])  # fmt: skip
    out = model(torch.randn(7, 5), random_tree(7))
    assert out.shape == (7, 3) and torch.isfinite(out).all()


@pytest.mark.parametrize("readout", ["mean", "mf", "dm"])
def test_graph_classifier_learns(readout):
    """Triangles against paths, their nodes known by their degrees."""
    torch.manual_seed(0)
    triangle = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    transform = RandomWalkKernel(num_walks=20, num_steps=2)
    data = [
        transform(Data(x=e[0].bincount()[:, None].float(), edge_index=e, y=y, num_nodes=3))
        for _ in range(8)
        for y, e in enumerate((triangle, path))
    ]
    model = GKATGraphClassifier(1, 8, 2, readout=readout, feature_map="elu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        for batch in DataLoader(data, batch_size=16):
            logits = model(batch.x, batch=batch.batch, mask=walk_mask(batch))
            loss = torch.nn.functional.cross_entropy(logits, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss < 0.2
    with pytest.raises(ValueError, match="readout must be one of mean, mf, dm, got 'max'"):
        GKATGraphClassifier(1, 8, 2, readout="max")


@pytest.mark.parametrize("readout", ["mean", "mf", "dm"])
def test_graph_classifier_on_empty_and_single_graphs(readout):
    model = GKATGraphClassifier(5, 4, 3, readout=readout).eval()
    parts = [RandomWalkKernel()(data) for data in graphs()]
    batch = Batch.from_data_list(parts)
    out = model(batch.x, batch=batch.batch, mask=walk_mask(batch), batch_size=6)
    assert out.shape == (6, 3) and torch.isfinite(out).all()
    assert_close(out[2], model(parts[2].x, mask=walk_mask(parts[2]))[0], rtol=1e-4, atol=1e-5)
    model.reset_parameters()


def test_node_classifier_makes_its_mask_once():
    made = []

    def make(edge_index, edge_weight, num_nodes):
        made.append(num_nodes)
        return RandomWalkMask()(edge_index, edge_weight, num_nodes=num_nodes)

    model = GKATNodeClassifier(5, 4, 3, heads=2, mask=make)
    out = model(torch.randn(7, 5), random_tree(7))
    assert out.shape == (7, 3) and made == [7]
    out.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    model.reset_parameters()


def test_without_pyg_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "vit_rpe.graph.gkat.models", raising=False)
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(MissingExtra, match=r"GKAT needs .*pip install 'vit_rpe\[graph\]'"):
        vit_rpe.graph.GKAT  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'GAT'"):
        vit_rpe.graph.GAT  # noqa: B018
    assert issubclass(WalkKernel, vit_rpe.graph.GraphMask)
