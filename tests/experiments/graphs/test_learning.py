"""Rivals of the paper's sizes, and training that stops early and keeps its best weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")

from vit_rpe.experiments.graphs import cycle_set, num_parameters  # noqa: E402
from vit_rpe.experiments.graphs.data import GraphBatch, NodeTask  # noqa: E402
from vit_rpe.experiments.graphs.fitting import (  # noqa: E402
    Best,
    Schedule,
    batches,
    fit,
    fit_graphs,
    fit_nodes,
    node_accuracy,
    score,
)
from vit_rpe.experiments.graphs.models import (  # noqa: E402
    Fingerprint,
    Multiset,
    NodeNet,
    convolve,
    gcn,
)
from vit_rpe.experiments.graphs.tables import cycles, motifs, tu  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path_factory.getbasetemp() / "graph-cache"))


# --- sizes, from the paper's table of parameters -------------------------------------------------


def test_cycle_models_have_the_parameters_of_the_paper():
    sizes = {m: [num_parameters(make(d)) for d in (2, 3, 4, 5, 6)] for m, make in
             cycles.MODELS.items()}  # fmt: skip
    assert sizes["GKAT"][0] == 242
    assert sizes["GAT"] == [242, 242, 266, 258, 270]
    assert sizes["GCN"] == [268, 262, 250, 260, 268]
    assert sizes["ChebNet"] == [236, 234, 247, 245, 249]
    assert all(190 < size < 270 for size in sizes["GIN"])


def test_motif_models_have_the_layers_of_the_paper():
    sizes = {name: num_parameters(make()) for name, make in motifs.MODELS.items()}
    q_k_v, biases, out = 3 * (5 + 18) * 18, 2 * 18, 2 * 18 + 2
    assert sizes["GKAT"] == sizes["GKAT m=16"] == q_k_v + biases + out
    assert sizes["GKAT additive"] == sizes["GAT"] == 560
    assert sizes["GCN"] == (5 + 1) * 32 + (32 + 1) * 32 + 66
    assert sizes["ChebNet"] == (2 * 5 + 1) * 32 + (2 * 32 + 1) * 32 + 66
    assert sizes["GIN"] == 566


def test_tu_rows_are_those_of_the_paper():
    assert {name: len(rows) for name, rows in tu.ROWS.items()} == {
        "ENZYMES": 2, "PROTEINS": 2, "NCI1": 1, "IMDB-BINARY": 2
    }  # fmt: skip
    assert [(r.heads, r.width, r.fc) for r in tu.ROWS["ENZYMES"]] == [(4, 16, 32), (8, 32, 64)]
    graphs = cycle_set(4, seed=0, nodes=9)  # one feature, two classes
    data = graphs.batch(torch.arange(8))
    for model in ("baseline", "GIN"):
        for row in tu.rows_of("PROTEINS", model):
            assert tu.network("PROTEINS", model, row, graphs)(data).shape == (8, 2)


# --- models --------------------------------------------------------------------------------------


def test_baselines_by_definition():
    x, batch = torch.randn(7, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    sums = [x[batch == graph].sum(0) for graph in (0, 1)]
    model = Fingerprint(3, 5, 2)
    torch.testing.assert_close(model(x, batch, 2), torch.stack([model.after(s) for s in sums]))
    deep = Multiset(3, 5, 2)
    sums = [deep.before(x[batch == graph]).sum(0) for graph in (0, 1)]
    expected = torch.stack([deep.after.after(s) for s in sums])
    torch.testing.assert_close(deep(x, batch, 2), expected)


def test_sparse_features_give_what_dense_ones_do():
    x = torch.randn(6, 9) * (torch.rand(6, 9) < 0.5)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]])
    first, second = nn.Linear(9, 4), nn.Linear(4, 2)
    model = NodeNet(_OnNodes(first), _OnNodes(second), dropout=0.5).eval()
    dense, sparse = (
        model(NodeTask(features, edges, *[torch.arange(6)] * 4))
        for features in (x, x.to_sparse().coalesce())
    )
    torch.testing.assert_close(dense, sparse)
    torch.manual_seed(0)
    dropped = NodeNet(_OnNodes(first), _OnNodes(second), 0.5)._dropped(x.to_sparse().coalesce())
    values = dropped.to_dense()
    kept = values != 0
    assert 0 < kept.sum() < (x != 0).sum()
    torch.testing.assert_close(values[kept], 2 * x[kept])


class _OnNodes(nn.Module):
    def __init__(self, linear: nn.Module):
        super().__init__()
        self.linear = linear

    def forward(self, x, edge_index):
        return self.linear(x)


def test_layers_of_pyg_get_edges():
    graphs = cycle_set(1, seed=0, nodes=9)
    data = graphs.batch(torch.arange(2))
    model = gcn(1, (4, 4))
    x = convolve(model.layers[0], data.x, data)
    torch.testing.assert_close(x, model.layers[0](data.x, data.edge_index))
    assert model(data).shape == (2, 2)


# --- training ------------------------------------------------------------------------------------


def scripted(values, patience=2, by_loss=True, epochs=20, keep="accuracy"):
    """Fit a model whose weight counts the epochs, with validation results from a list."""
    model = nn.Linear(1, 1)
    results = iter(values)

    def train():
        with torch.no_grad():
            model.weight += 1
        return iter(())

    with torch.no_grad():
        model.weight.fill_(-1)
    schedule = Schedule(0.1, epochs, patience, by_loss=by_loss, keep=keep)
    fitted = fit(model, train, lambda: next(results), schedule)
    return fitted, float(model.weight)


def test_the_best_epoch_is_kept():
    fitted, weight = scripted([(0.5, 1.0), (0.7, 0.9), (0.7, 0.8), (0.6, 0.81), (0.7, 0.8)])
    assert (fitted.val, fitted.val_loss, fitted.epoch, fitted.epochs) == (0.7, 0.8, 2, 5)
    assert weight == 2


def test_a_smaller_loss_counts_only_if_asked_for():
    losses = [(0.5, 1.0), (0.4, 0.9), (0.4, 0.8), (0.4, 0.7), (0.4, 0.75), (0.4, 0.75)]
    both, weight = scripted(losses)
    assert both.epochs == 6 and both.epoch == 0 and weight == 0
    by_accuracy, _ = scripted(losses, by_loss=False)
    assert by_accuracy.epochs == 3


def test_weights_of_the_last_epoch_that_was_best_in_both():
    early_peak = [(0.7, 2.0), (0.8, 1.9), (0.6, 1.5), (0.8, 1.0), (0.8, 1.1), (0.7, 0.9)]
    assert scripted(early_peak, patience=9, epochs=6)[1] == 3
    fitted, weight = scripted(early_peak[:3], patience=9, epochs=3, keep="both")
    assert (fitted.val, fitted.val_loss) == (0.8, 1.9) and weight == 1
    fitted, weight = scripted([*early_peak, (0.8, 0.8)], patience=9, epochs=7, keep="both")
    assert (fitted.epoch, fitted.val_loss) == (6, 0.8) and weight == 6


def test_epochs_are_an_end_too():
    assert scripted([(0.5, 1.0)] * 4, patience=9, epochs=4)[0].epochs == 4
    best = Best()
    best.see(0, 0.0, 5.0, nn.Linear(1, 1))  # nothing right is still a first epoch
    assert best.epoch == 0 and best.weights


class Separable:
    """Graphs of one node whose feature is their class."""

    def __init__(self, count):
        self.y = torch.arange(count) % 2

    def __len__(self):
        return len(self.y)

    def batch(self, index):
        y = self.y[index]
        x = torch.stack([y, 1 - y], 1).float()
        none = torch.empty(2, 0, dtype=torch.int64)
        return GraphBatch(x, none, y, torch.arange(len(y)), torch.arange(len(y) + 1))


def test_graphs_are_learned_from_shuffled_batches():
    torch.manual_seed(0)
    model = gcn(2, (8,))
    fitted = fit_graphs(model, Separable(50), Separable(30), Schedule(0.05, 40, 40, batch_size=8))
    accuracy, loss = score(model, batches(Separable(25), batch_size=4))
    assert fitted.val == accuracy == 1.0
    whole = Separable(25).batch(torch.arange(25))
    assert loss == pytest.approx(float(F.cross_entropy(model(whole), whole.y)), rel=1e-4)


def test_training_stops_where_it_is_told_to():
    seen = []
    after = lambda epoch, accuracy: seen.append(epoch) or epoch == 2  # noqa: E731
    fitted = fit_graphs(gcn(2, (2,)), Separable(4), Separable(4), Schedule(0.1, 9, 9), after)
    assert fitted.epochs == 3 and seen == [0, 1, 2]


def test_nodes_are_learned():
    torch.manual_seed(0)
    y = torch.arange(12) % 2
    x = F.one_hot(y).float().to_sparse().coalesce()
    parts = torch.arange(12).split(4)
    data = NodeTask(x, torch.stack([torch.arange(12)] * 2), y, *parts)
    model = NodeNet(_OnNodes(nn.Linear(2, 4)), _OnNodes(nn.Linear(4, 2)), 0.0)
    assert fit_nodes(model, data, Schedule(0.1, 60, 60)).val == 1.0
    assert node_accuracy(model, data, data.test) == 1.0
