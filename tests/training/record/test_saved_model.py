"""A checkpoint knows the names of its classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm

from tests.training.launch import train
from tests.training.runs import make_data, make_named, write_recipe

NAMES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    make_named(folder / "shards", NAMES)
    values: dict[str, Any] = {"data_dir": str(folder / "shards"), "output": str(folder)}
    write_recipe(folder / "a.yaml", **values, num_classes=None, epochs=2, model_ema=True)
    code, shown = train("--recipe", str(folder / "a.yaml"), "experiment=run")
    assert code == 0, shown
    return folder


@pytest.mark.parametrize("part", ["", "/ema"])
def test_a_checkpoint_knows_its_classes(place, part):
    folder = place / "run" / "checkpoints" / f"best{part}"
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert model.pretrained_cfg["label_names"] == NAMES and model.num_classes == 3
    config = json.loads((folder / "config.json").read_text())
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 3


def test_without_names_a_checkpoint_names_none(tmp_path):
    data = make_data(tmp_path / "data")
    recipe = write_recipe(
        tmp_path / "b.yaml", data_dir=data, output=str(tmp_path), warmup_epochs=0, epochs=1
    )
    code, shown = train("--recipe", recipe)
    assert code == 0, shown
    model: Any = timm.create_model(f"local-dir:{tmp_path}/b/checkpoints/last", pretrained=True)
    assert model.pretrained_cfg.get("label_names") is None and model.num_classes == 10
