"""GKAT among PyG's own: Sequential, batches, models and the transform that keeps Psi."""

import sys

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import Sequential  # noqa: E402
from torch_geometric.transforms import AddSelfLoops, LargestConnectedComponents  # noqa: E402

import vit_rpe.graph  # noqa: E402
from tests.graph.graphs import EMPTY, random_graph, random_tree  # noqa: E402
from vit_rpe.graph import (  # noqa: E402
    GKATConv,
    GKATGraphClassifier,
    GKATNodeClassifier,
    RandomWalkKernel,
    RandomWalkMask,
    WalkKernel,
    walk_mask,
)
from vit_rpe.graph.layer import FEATURE_MAPS  # noqa: E402


def graphs() -> list[Data]:
    """Half of them empty or single nodes."""
    torch.manual_seed(1)
    edges = [random_graph(9, 14), EMPTY, random_tree(7), EMPTY, EMPTY, random_graph(6, 5)]
    sizes = [9, 1, 7, 0, 1, 8]
    return [
        Data(x=torch.randn(n, 5), edge_index=e, num_nodes=n)
        for n, e in zip(sizes, edges, strict=True)
    ]


def test_in_pygs_sequential():
    model = Sequential("x, edge_index", [
        (GKATConv(5, 4, 2), "x, edge_index -> x"),
        torch.nn.ELU(),
        (GKATConv(8, 3, concat=False), "x, edge_index -> x"),
    ])  # fmt: skip
    out = model(torch.randn(7, 5), random_tree(7))
    assert out.shape == (7, 3) and torch.isfinite(out).all()


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_a_batch_is_its_graphs_one_by_one(feature_map):
    transform = RandomWalkKernel(num_walks=6, length=2)
    parts = [transform(data) for data in graphs()]
    conv = GKATConv(5, 4, 2, feature_map=feature_map)
    batch = Batch.from_data_list(parts)
    whole = conv(batch.x, mask=walk_mask(batch))
    alone = [conv(p.x, mask=walk_mask(p) if p.num_nodes else None) for p in parts]
    assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_the_transform_is_the_kernel_of_its_walks():
    data = RandomWalkKernel(num_walks=6, length=2)(graphs()[0])
    mask = walk_mask(data, lam=0.5)
    assert mask.visits.num_walks == 6 and mask.length == 9
    psi = torch.zeros(9, 9, 3).double()
    psi[data.walk_index[0], data.walk_index[1]] = data.walk_count.double() / 6
    psi = psi @ torch.tensor([1.0, 0.5, 0.25]).double()
    psi = psi / psi.norm(dim=-1, keepdim=True)
    assert_close(mask.dense(), psi @ psi.mT)
    x = torch.randn(9, 4, dtype=torch.float64)
    assert_close(mask.matmul(x), psi @ psi.mT @ x)
    data.walk_index, data.walk_count = data.walk_index.flip(1), data.walk_count.flip(0)
    assert_close(walk_mask(data, lam=0.5).dense(), mask.dense())


def test_walks_are_drawn_once(monkeypatch, tmp_path):
    drawn = []
    draw = RandomWalkKernel._draw
    monkeypatch.setattr(
        RandomWalkKernel, "_draw", lambda self, *args: drawn.append(1) or draw(self, *args)
    )
    transform = RandomWalkKernel(num_walks=6, length=2)
    first = [transform(data).walk_count for data in graphs()]
    again = [transform(data).walk_count for data in reversed(graphs())][::-1]
    # two of the graphs are the same single node
    assert len(drawn) == 5 and all(a is b for a, b in zip(first, again, strict=True))
    transform.save(tmp_path / "psi.safetensors")
    other = RandomWalkKernel(num_walks=6, length=2)
    other.load(tmp_path / "psi.safetensors")
    assert all(other(d).walk_count.equal(c) for d, c in zip(graphs(), first, strict=True))
    assert len(drawn) == 5
    fresh = RandomWalkKernel(num_walks=6, length=2)
    assert fresh(graphs()[2]).walk_count.equal(first[2])  # the order does not matter
    with pytest.raises(ValueError, match="has the walks of .*length=2.* wanted .*length=3"):
        RandomWalkKernel(num_walks=6, length=3).load(tmp_path / "psi.safetensors")
    (tmp_path / "bad").write_bytes(b"nothing")
    for name in ("bad", "missing"):
        with pytest.raises(ValueError, match=f"{name}: no walks to load"):
            other.load(tmp_path / name)
    with pytest.raises(ValueError, match="apply RandomWalkKernel first"):
        walk_mask(graphs()[0])


@pytest.mark.parametrize("readout", ["mean", "mf", "dm"])
def test_graph_classifier_learns(readout):
    """Triangles against paths, their nodes known by their degrees."""
    torch.manual_seed(0)
    triangle = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    transform = RandomWalkKernel(num_walks=20, length=2)
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

    def make(edge_index, n, weight):
        made.append(n)
        return RandomWalkMask()(edge_index, n, weight)

    model = GKATNodeClassifier(5, 4, 3, heads=2, mask=make)
    out = model(torch.randn(7, 5), random_tree(7))
    assert out.shape == (7, 3) and made == [7]
    out.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    model.reset_parameters()


def test_without_pyg_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "vit_rpe.graph.models", raising=False)
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(ModuleNotFoundError, match=r"GKAT needs .*pip install vit_rpe\[graph\]"):
        vit_rpe.graph.GKAT  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'GAT'"):
        vit_rpe.graph.GAT  # noqa: B018
    assert issubclass(WalkKernel, vit_rpe.graph.GraphMask)


def relabeled(data: Data) -> Data:
    return data.subgraph(torch.randperm(data.num_nodes))


def smaller(data: Data) -> Data:
    return data.subgraph(torch.arange(data.num_nodes) < data.num_nodes - 1)


def cut_or_reweighted(data: Data) -> Data:
    if "edge_weight" in data:
        data.edge_weight = data.edge_weight * 2
    else:
        data.edge_index = data.edge_index[:, 1:]
    return data


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        relabeled,
        smaller,
        cut_or_reweighted,
        AddSelfLoops("edge_weight"),
        LargestConnectedComponents(),
    ],
)
def test_walks_of_another_graph_are_refused(change, weighted):
    torch.manual_seed(0)
    stored = [*graphs()[:3], graphs()[5]]
    for data in stored:
        if weighted:
            data.edge_weight = torch.rand(data.num_edges)
    parts = [RandomWalkKernel(num_walks=6, length=2)(data) for data in stored]
    message = "walk_index is that of another graph: .* apply RandomWalkKernel after"
    changed = change(parts[3].clone())
    with pytest.raises(ValueError, match=f"^{message}"):
        walk_mask(changed)
    with pytest.raises(ValueError, match=f"^graph 3 of the batch: {message}"):
        walk_mask(Batch.from_data_list([*parts[:3], changed]))
    walk_mask(Batch.from_data_list(parts))


def test_walks_stay_where_the_graph_is_the_same():
    data = RandomWalkKernel(num_walks=6, length=2)(graphs()[0])
    expected = walk_mask(data).dense()
    order = torch.randperm(data.num_edges)
    data.edge_index = data.edge_index[:, order]  # edges have no order
    assert_close(walk_mask(data).dense(), expected)
    loaded = Data(x=data.x, walk_index=data.walk_index, walk_count=data.walk_count)
    assert_close(walk_mask(loaded).dense(), expected)  # stored by an earlier version
    loaded.x = data.x[:-1]
    with pytest.raises(ValueError, match=r"walk_index: edge \d+ joins .* nodes go from 0 to 7"):
        walk_mask(loaded)


def test_batches_of_any_graphs_know_their_walks():
    """Also those whose walks, nodes or edges are one or none."""
    parts = [RandomWalkKernel(num_walks=6, length=2)(data) for data in graphs()]
    for some in (parts, parts[1:2], parts[3:5], parts[::-1]):
        batch = Batch.from_data_list(some)
        if batch.num_nodes:
            assert walk_mask(batch).length == batch.num_nodes
