"""The demonstration of conversion, in small."""

import json
from argparse import Namespace
from importlib import import_module

import pytest
import torch


@pytest.fixture(scope="module")
def tool():
    return import_module("tools.demos.conversion")


def test_the_demo(tool, monkeypatch, tmp_path, capsys):
    split = tool.Split(
        torch.randn(32, 1, 8, 8), torch.arange(32) % 10, torch.randn(10, 1, 8, 8), torch.arange(10)
    )
    monkeypatch.setattr(tool, "digits", lambda seed: split)
    monkeypatch.setattr(tool, "FEATURE_MAPS", [("relu", None), ("favor", 4)])
    monkeypatch.setattr(tool, "CURVE", (4, 8))
    monkeypatch.setattr(tool, "SHAPE", {**tool.SHAPE, "embed_dim": 8, "depth": 1})
    settings = Namespace(
        seed=0, draws=2, epochs=1, lr=1e-3, fine_tune_epochs=1, fine_tune_lr=1e-3, threads=1
    )
    results = tool.run(settings)
    assert "softmax ViT" in capsys.readouterr().out
    assert len(results["rows"]) == 4 and len(results["curve"]) == 4
    for row in results["rows"]:
        assert 0 <= row["lowest"] <= row["converted"] <= row["highest"] <= 100
    pytest.importorskip("matplotlib")
    tool.draw(json.loads(json.dumps(results)), tmp_path / "new" / "plot.png")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_digits_are_split_in_equal_parts(tool):
    pytest.importorskip("sklearn")
    split = tool.digits(0)
    assert len(split.train_labels) == 1437 and len(split.test_labels) == 360
    assert split.test_labels.bincount().min() >= 34
    assert split.train_images.min() == -1 and split.train_images.max() == 1
    assert torch.equal(split.test_images, tool.digits(0).test_images)
