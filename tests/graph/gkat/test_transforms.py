"""The transform that draws walks once, and the masks made from it."""

import pytest
import torch
from safetensors import safe_open
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.transforms import AddSelfLoops, LargestConnectedComponents  # noqa: E402

from tests.graph.gkat.batches import graphs  # noqa: E402
from tests.graph.gkat.layers import FEATURE_MAPS  # noqa: E402
from vit_rpe.graph import (  # noqa: E402
    AddRandomWalks,
    GKATConv,
    walk_mask,
)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_a_batch_is_its_graphs_one_by_one(feature_map):
    transform = AddRandomWalks(num_walks=6, num_steps=2)
    parts = [transform(data) for data in graphs()]
    conv = GKATConv(5, 4, 2, feature_map=feature_map)
    batch = Batch.from_data_list(parts)
    whole = conv(batch.x, mask=walk_mask(batch))
    alone = [conv(p.x, mask=walk_mask(p) if p.num_nodes else None) for p in parts]
    assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_the_transform_is_the_kernel_of_its_walks():
    data = AddRandomWalks(num_walks=6, num_steps=2)(graphs()[0])
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
    draw = AddRandomWalks._draw
    monkeypatch.setattr(
        AddRandomWalks, "_draw", lambda self, *args: drawn.append(1) or draw(self, *args)
    )
    transform = AddRandomWalks(num_walks=6, num_steps=2)
    first = [transform(data).walk_count for data in graphs()]
    again = [transform(data).walk_count for data in reversed(graphs())][::-1]
    # two of the graphs are the same single node
    assert len(drawn) == 5 and all(a is b for a, b in zip(first, again, strict=True))
    transform.save(tmp_path / "psi.safetensors")
    other = AddRandomWalks(num_walks=6, num_steps=2)
    other.load(tmp_path / "psi.safetensors")
    assert all(other(d).walk_count.equal(c) for d, c in zip(graphs(), first, strict=True))
    assert len(drawn) == 5
    fresh = AddRandomWalks(num_walks=6, num_steps=2)
    assert fresh(graphs()[2]).walk_count.equal(first[2])  # the order does not matter
    with pytest.raises(ValueError, match="has the walks of .*length=2.* wanted .*length=3"):
        AddRandomWalks(num_walks=6, num_steps=3).load(tmp_path / "psi.safetensors")
    (tmp_path / "bad").write_bytes(b"nothing")
    for name in ("bad", "missing"):
        with pytest.raises(ValueError, match=f"{name}: no walks to load"):
            other.load(tmp_path / name)
    with pytest.raises(ValueError, match="apply AddRandomWalks first"):
        walk_mask(graphs()[0])


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
    parts = [AddRandomWalks(num_walks=6, num_steps=2)(data) for data in stored]
    message = "walk_index is that of another graph: .* apply AddRandomWalks after"
    changed = change(parts[3].clone())
    with pytest.raises(ValueError, match=f"^{message}"):
        walk_mask(changed)
    with pytest.raises(ValueError, match=f"^graph 3 of the batch: {message}"):
        walk_mask(Batch.from_data_list([*parts[:3], changed]))
    walk_mask(Batch.from_data_list(parts))


def test_walks_stay_where_the_graph_is_the_same():
    data = AddRandomWalks(num_walks=6, num_steps=2)(graphs()[0])
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
    parts = [AddRandomWalks(num_walks=6, num_steps=2)(data) for data in graphs()]
    for some in (parts, parts[1:2], parts[3:5], parts[::-1]):
        batch = Batch.from_data_list(some)
        if batch.num_nodes:
            assert walk_mask(batch).length == batch.num_nodes


def test_files_of_earlier_versions_are_read(tmp_path):
    """Settings in a file are text, which names steps as it did when files were first written."""
    file = tmp_path / "walks.safetensors"
    transform = AddRandomWalks(num_walks=6, num_steps=2, seed=3)
    transform(graphs()[0])
    transform.save(file)
    with safe_open(file, "pt") as stored:
        text = stored.metadata()["walks"]
    assert text == "RandomWalkMask(num_walks=6, length=2, lam=1.0, alpha=1.0, seed=3)"
