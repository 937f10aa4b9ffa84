"""The pictures of GKAT, on small inputs."""

from __future__ import annotations

from importlib import import_module

import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")


@pytest.fixture(scope="module")
def graphs():
    return import_module("tools.demos.graphs")


def test_attention_trains_and_draws(graphs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path))
    picture = tmp_path / "m.png"
    graphs.main(["attention", "--pairs", "2", "--epochs", "2", "--output", str(picture)])
    assert "of 2 held-out graphs" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_sketch_draws(graphs, tmp_path):
    picture = tmp_path / "s.png"
    graphs.main(["sketch", "--output", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bad_options_give_one_line(graphs, capsys):
    with pytest.raises(SystemExit):
        graphs.main(["attention", "--pairs", "0"])
    err = capsys.readouterr().err
    assert "wanted a whole number above 0, got '0'" in err and err.count("\n") == 1
