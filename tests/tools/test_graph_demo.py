"""The demonstration of GKAT and the benchmark of its layer, on small inputs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def load():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))

        def module(name: str):
            spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
            assert spec is not None and spec.loader is not None
            made = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, name, made)
            spec.loader.exec_module(made)
            return made

        yield module


def test_motif_graphs_are_as_the_paper_says(load):
    data = load("graph_demo_data")
    graphs = data.motif_set(6, seed=3)
    assert [int(g.y) for g in graphs] == [1, 0] * 6
    for g in graphs:
        motif = g.motif
        inside = motif[g.edge_index[0]] & motif[g.edge_index[1]]
        across = motif[g.edge_index[0]] & ~motif[g.edge_index[1]]
        assert motif.sum() == 9 and inside.sum() == 2 * 12 and across.sum() >= 1
        once = g.edge_index[:, inside].mT.tolist()
        is_grid = nx.is_isomorphic(nx.Graph(once), nx.grid_2d_graph(3, 3))
        assert is_grid or g.y == 0
        plain = nx.Graph(g.edge_index.mT.tolist())
        top = sorted((plain.degree[j] for j in plain.neighbors(0)), reverse=True)[:5]
        assert g.x[0].tolist() == top + [0] * (5 - len(top))
    pair = graphs[0], graphs[1]
    base = [set(map(tuple, g.edge_index[:, ~(g.motif[g.edge_index].any(0))].mT.tolist()))
            for g in pair]  # fmt: skip
    assert base[0] == base[1]


def test_motifs_trains_both_and_draws(load, tmp_path, capsys):
    picture = tmp_path / "m.png"
    load("graph_demo").main(["motifs", "--pairs", "2", "--epochs", "2", "--plot", str(picture)])
    out = capsys.readouterr().out
    assert (
        "2 + 1 pairs of graphs" in out
        and "GKAT" in out
        and "GAT " in out
        and picture.read_bytes().startswith(b"\x89PNG")
    )


def test_sketch_draws(load, tmp_path):
    picture = tmp_path / "s.png"
    load("graph_demo").main(["sketch", "--output", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def small_cora(tmp_path, monkeypatch):
    """Two groups of nodes that know their class by one word."""
    folder = tmp_path / "planetoid"
    folder.mkdir()
    n = 40
    edges = [(i, j) for i in range(n) for j in range(n) if i != j and (i - j) % 4 == 0]
    np.savez(
        folder / "cora.npz",
        x_data=np.ones(n, np.float32), x_indices=np.arange(n) % 2, x_indptr=np.arange(n + 1),
        x_shape=np.array([n, 3]), y=np.arange(n) % 2, edge_index=np.array(edges).T,
        train_idx=np.arange(8), val_idx=np.arange(8, 20), test_idx=np.arange(20, n),
    )  # fmt: skip
    monkeypatch.setenv("VIT_RPE_DATA", str(tmp_path))
    return tmp_path


def test_citation_learns_and_goes_on_from_its_file(load, small_cora, capsys):
    demo, file = load("graph_demo"), small_cora / "r.json"
    options = ["citation", "--only", "cora", "--epochs", "15", "--json", str(file)]
    demo.main([*options, "--seeds", "1"])
    first = json.loads(file.read_text())
    assert first["cora GKAT"]["0"]["test"] > 0.9 and first["cora GAT"]["0"]["test"] > 0.9
    demo.main([*options, "--seeds", "2", "--models", "GKAT"])
    second = json.loads(file.read_text())
    assert second["cora GKAT"]["0"] == first["cora GKAT"]["0"] and "1" in second["cora GKAT"]
    assert "2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "message"), [(None, "set VIT_RPE_DATA"), ("nowhere", "cora.npz is missing")]
)
def test_missing_data_is_named(load, monkeypatch, folder, message):
    if folder is None:
        monkeypatch.delenv("VIT_RPE_DATA", raising=False)
    else:
        monkeypatch.setenv("VIT_RPE_DATA", folder)
    with pytest.raises(SystemExit, match=message):
        load("graph_demo").main(["citation", "--only", "cora"])


def test_bad_options_give_one_line(load, capsys):
    for argv, message in [
        (["citation", "--only", "reddit"], "no 'reddit'; there are cora, citeseer, pubmed"),
        (["motifs", "--pairs", "0"], "invalid positive_integer value"),
    ]:
        with pytest.raises(SystemExit):
            load("graph_demo").main(argv)
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    with pytest.raises(SystemExit, match="graph_demo: error: feature_map must be one of"):
        load("graph_demo").main(["motifs", "--pairs", "3", "--feature-map", "rbf"])


def test_the_benchmark_of_the_layer(load, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("VIT_RPE_DATA", raising=False)
    bench = load("bench_gkat")
    monkeypatch.setitem(bench.SIZES, "citeseer", 60)
    file = tmp_path / "b.json"
    bench.main(["--only", "motif,citeseer", "--seconds-per-case", "0.05", "--json", str(file)])
    report = json.loads(file.read_text())
    assert [case["graph"] for case in report["cases"]] == ["motif", "citeseer"]
    for case in report["cases"]:
        assert {bench.OURS, bench.EXPLICIT, bench.DENSE, "PyG GATConv"} <= set(case["layers"])
        assert all(row["train_ms"] > 0 for row in case["layers"].values())
    assert (
        len(report["cases"][1]["bars"]) == 3 and "dense GAT / GKATConv" in capsys.readouterr().out
    )
    bench.main(["--million", "--nodes", "300", "--json", str(file)])
    large = json.loads(file.read_text())["million"]
    assert large["nodes"] == 300 and large["edges"] == pytest.approx(1500, rel=0.1)
    assert large["peak_gb"] > 0.1 and large["seconds"]["backward"] > 0


def test_layers_of_the_benchmark_agree(load):
    """GKAT-0 gets the same mask as GKATConv, and the dense GAT layer is PyG's sparse one."""
    bench = load("bench_gkat")
    edges, n, _ = bench.graph("motif")
    torch.manual_seed(0)
    layers = bench.contestants(edges, n)
    x = torch.randn(n, bench.CHANNELS)
    explicit, linear = layers[bench.EXPLICIT][0], layers["GKATConv ReLU"][0]
    explicit.load_state_dict(linear.state_dict(), strict=False)
    explicit.features = linear.features
    torch.testing.assert_close(
        layers[bench.EXPLICIT][1](x), layers["GKATConv ReLU"][1](x), rtol=1e-4, atol=1e-5
    )
    dense, sparse = layers[bench.DENSE][0], layers["PyG GATConv"][0]
    with torch.no_grad():
        dense.lin.weight.copy_(sparse.lin.weight)
        dense.att_src.copy_(sparse.att_src[None])
        dense.att_dst.copy_(sparse.att_dst[None])
    torch.testing.assert_close(
        layers[bench.DENSE][1](x), layers["PyG GATConv"][1](x), rtol=1e-4, atol=1e-5
    )
