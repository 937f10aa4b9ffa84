"""The benchmark of the GKAT layer: its layers agree, and its report is whole."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")


@pytest.fixture(scope="module")
def bench():
    return import_module("tools.bench.gkat")


def test_the_benchmark_of_the_layer(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("VIT_RPE_DATA", raising=False)
    monkeypatch.setitem(bench.SIZES, "citeseer", 60)
    # before each of 30 peaks, among all objects of a session of tests: most of this test's time
    monkeypatch.setattr("vit_rpe.measuring.gc.collect", lambda: 0)
    file = tmp_path / "b.json"
    code = bench.main(["--only", "motif,citeseer,batch", "--seconds", "0.05", "--json", str(file)])
    report = json.loads(file.read_text())
    bars = [bar for case in report["cases"] for bar in case["bars"]]
    assert code == (not all(bar["met"] for bar in bars))
    cases = {case["graph"]: case for case in report["cases"]}
    assert cases.keys() == {"motif", "citeseer", "batch"}
    for case in report["cases"]:
        wanted = {bench.OURS, bench.GAT, bench.ADDITIVE + bench.WIDE, bench.EXACT}
        if case["graph"] != "batch":
            wanted |= {bench.EXPLICIT, bench.DENSE}
        assert wanted <= set(case["layers"])
        assert all(row["train_ms"] > 0 for row in case["layers"].values())
    assert len(cases["citeseer"]["bars"]) == 3 and "dense GAT / GKATConv" in capsys.readouterr().out
    assert cases["batch"]["bars"][0]["aim"] == (
        "batch: GKATConv exact / PyG GATConv, time to train, at most"
    )
    bench.main(["--million", "--nodes", "300", "--json", str(file)])
    large = json.loads(file.read_text())["million"]
    assert large["nodes"] == 300 and large["edges"] == pytest.approx(1500, rel=0.1)
    assert large["peak_gb"] > 0.1 and large["seconds"]["backward"] > 0


def test_layers_of_the_benchmark_agree(bench):
    """GKAT-0 gets the same mask as GKATConv, and the dense GAT layer is PyG's sparse one."""
    edges, sizes, _ = bench.graph("motif")
    torch.manual_seed(0)
    layers = bench.contestants(edges, sizes)
    x = torch.randn(sum(sizes), bench.CHANNELS)
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
