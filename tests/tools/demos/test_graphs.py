"""The demonstration of GKAT, on small inputs."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")


@pytest.fixture(scope="module")
def graphs():
    return import_module("tools.demos.graphs")


def test_motifs_trains_both_and_draws(graphs, tmp_path, capsys):
    picture = tmp_path / "m.png"
    graphs.main(["motifs", "--pairs", "2", "--epochs", "2", "--plot", str(picture)])
    out = capsys.readouterr().out
    assert (
        "2 + 1 pairs of graphs" in out
        and "GKAT" in out
        and "GAT " in out
        and picture.read_bytes().startswith(b"\x89PNG")
    )


def test_sketch_draws(graphs, tmp_path):
    picture = tmp_path / "s.png"
    graphs.main(["sketch", "--output", str(picture)])
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


def test_citation_learns_and_goes_on_from_its_file(graphs, small_cora, capsys):
    demo, file = graphs, small_cora / "r.json"
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
def test_missing_data_is_named(graphs, monkeypatch, folder, message):
    if folder is None:
        monkeypatch.delenv("VIT_RPE_DATA", raising=False)
    else:
        monkeypatch.setenv("VIT_RPE_DATA", folder)
    with pytest.raises(SystemExit, match=message):
        graphs.main(["citation", "--only", "cora"])


def test_bad_options_give_one_line(graphs, capsys):
    for argv, message in [
        (["citation", "--only", "reddit"], "no 'reddit'; there are cora, citeseer, pubmed"),
        (["motifs", "--pairs", "0"], "invalid positive_integer value"),
    ]:
        with pytest.raises(SystemExit):
            graphs.main(argv)
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    with pytest.raises(SystemExit, match="demos/graphs: error: feature_map must be one of"):
        graphs.main(["motifs", "--pairs", "3", "--feature-map", "rbf"])
