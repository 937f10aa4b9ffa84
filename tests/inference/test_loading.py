"""Models as people name them, and the names of their classes."""

from __future__ import annotations

import pytest
import timm

from vit_rpe.inference import ModelSource
from vit_rpe.training import CheckpointError

MODEL = {"img_size": 32, "depth": 1, "num_classes": 3}


def test_one_of_two():
    for wrong in ({}, {"checkpoint": "x", "name": "y"}):
        with pytest.raises(ValueError, match="give one of them"):
            ModelSource(**wrong)


def test_names_of_classes():
    model = timm.create_model("vit_tiny_patch16_224", **MODEL)
    random = ModelSource(name="vit_tiny_patch16_224")
    assert random.names_of(model) == ["0", "1", "2"] and random.has_random_weights
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["n1", "n2"]}
    assert random.names_of(model) == ["n1", "n2", "2"]
    model.pretrained_cfg["label_descriptions"] = {"n2": "owl"}
    assert random.names_of(model) == ["n1", "owl", "2"]


def test_published_models_of_imagenet_have_its_names():
    model = timm.create_model("resnet10t")
    published = ModelSource(name="resnet10t", pretrained=True)
    names = published.names_of(model)
    assert len(names) == 1000 and names[0].startswith("tench") and not published.has_random_weights
    assert ModelSource(name="resnet10t").names_of(model)[:2] == ["0", "1"]  # random weights


def test_a_folder_of_timms_is_found_and_weights_that_run_code_are_not(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (tmp_path / "config.json").write_text('{"architecture": "resnet10t"}')
    with pytest.raises(CheckpointError, match="no checkpoint at "):
        ModelSource(name=f"local-dir:{tmp_path}").build()
