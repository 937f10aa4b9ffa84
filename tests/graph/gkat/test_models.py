"""GKAT among PyG's own: Sequential, batches, models and the transform that keeps Psi."""

import sys

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import GAT  # noqa: E402

import vit_rpe.graph  # noqa: E402
from tests.graph.gkat.batches import graphs  # noqa: E402
from tests.graph.graphs import random_tree  # noqa: E402
from vit_rpe.extras import MissingExtra  # noqa: E402
from vit_rpe.graph import (  # noqa: E402
    GKAT,
    RWGNK,
    AddRandomWalks,
    GKATGraphClassifier,
    GKATNodeClassifier,
    WalkKernel,
    walk_mask,
)


@pytest.mark.parametrize("jk", [None, "last", "cat", "max", "lstm"])
@pytest.mark.parametrize("norm", [None, "batch_norm", "graph_norm"])
def test_gkat_is_built_as_pygs_models(jk, norm):
    """GAT of PyG has the same arguments, and the same number of convs, norms and outputs."""
    x, edges = torch.randn(7, 5), random_tree(7)
    for layers, out in ((1, 3), (3, 3), (3, None)):
        ours = GKAT(5, 8, layers, out, dropout=0.1, norm=norm, jk=jk, heads=2)
        theirs = GAT(5, 8, layers, out, dropout=0.1, norm=norm, jk=jk, heads=2)
        assert [(c.in_channels, c.out_channels, c.concat) for c in ours.convs] == [
            (c.in_channels, c.out_channels, c.concat) for c in theirs.convs
        ]
        assert [type(n) for n in ours.norms] == [type(n) for n in theirs.norms]
        assert ours(x, edges).shape == theirs(x, edges).shape == (7, out or 8)
        assert ours.out_channels == theirs.out_channels
        assert repr(ours) == f"GKAT(5, {out or 8}, num_layers={layers})"
        ours.reset_parameters()


def test_gkat_is_its_layers():
    torch.manual_seed(0)
    x, edges = torch.randn(7, 5), random_tree(7)
    for first in (False, True):
        model = GKAT(-1, (8, 6), 2, 3, norm="batch_norm", act_first=first, heads=(2, 1)).eval()
        mask = RWGNK()(edges)
        one, two = model.convs
        model(x, edges)
        model.norms[0].module.running_mean.add_(0.3)
        h = one(x, mask=mask)
        elu = torch.nn.functional.elu
        h = model.norms[0](elu(h)) if first else elu(model.norms[0](h))
        assert_close(model(x, edges), two(h, mask=mask))
        assert (one.heads, one.out_channels, two.in_channels, two.concat) == (2, 4, 8, False)
    for call, message in (
        (lambda: GKAT(5, 8, 2, heads=3), "layer 0 of 8 channels cannot be cut into 3 heads"),
        (
            lambda: GKAT(5, (8, 4), 3),
            r"3 layers need as many hidden_channels, from 1 on, got \[8, 4\]",
        ),
        (lambda: GKAT(5, 8, 2, heads=0), r"2 layers need as many heads, from 1 on, got \[0, 0\]"),
        (
            lambda: GKAT(5, 8, 2, jk="sum"),
            "jk must be None, 'last', 'cat', 'max' or 'lstm', got 'sum'",
        ),
        (lambda: GKAT(5, 8, 0), "num_layers must be at least 1, got 0"),
        (lambda: GKAT(5, (8, 4), 2, jk="max"), r"jk='max' needs layers of one width, got \[8, 4\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_papers_models_for_tu_can_be_said():
    """Normalized features, a linear layer, heads and then one head, DeepMultisets of 32."""
    model = GKATGraphClassifier(
        5, (8, 16), 3, heads=(4, 1), readout="dm", dropout=0.1,
        normalize=True, pre_channels=12, post_channels=32,
    )  # fmt: skip
    parts = [AddRandomWalks(num_steps=2)(data) for data in graphs()]
    batch = Batch.from_data_list(parts)
    out = model(batch.x, batch=batch.batch, mask=walk_mask(batch), batch_size=6)
    assert out.shape == (6, 3)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim == 2]
    widths = (12, 5), (32, 12), (32, 12), (32, 12), (16, 32), (16, 32), (16, 32)
    assert shapes == [*widths, (32, 16), (32, 32), (3, 32)]
    torch.manual_seed(0)
    model.reset_parameters()


@pytest.mark.parametrize("readout", ["mean", "mf", "dm"])
def test_graph_classifier_learns(readout):
    """Triangles against paths, their nodes known by their degrees."""
    torch.manual_seed(0)
    triangle = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    transform = AddRandomWalks(num_walks=20, num_steps=2)
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
    parts = [AddRandomWalks()(data) for data in graphs()]
    batch = Batch.from_data_list(parts)
    out = model(batch.x, batch=batch.batch, mask=walk_mask(batch), batch_size=6)
    assert out.shape == (6, 3) and torch.isfinite(out).all()
    assert_close(out[2], model(parts[2].x, mask=walk_mask(parts[2]))[0], rtol=1e-4, atol=1e-5)
    model.reset_parameters()


def test_node_classifier_makes_its_mask_once():
    made = []

    def make(edge_index, edge_weight, num_nodes):
        made.append(num_nodes)
        return RWGNK()(edge_index, edge_weight, num_nodes=num_nodes)

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
