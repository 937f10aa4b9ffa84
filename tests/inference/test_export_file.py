"""Exported files: what they compute, what they tell, what is refused, what is left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vit_rpe.data import Videos
from vit_rpe.inference import Classifier, ExportFailed, data_config, export, formats, metadata

SMALL = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 5, "rpe_init": "decay"}
CLIPS = {"num_frames": 4, "tubelet_size": 2}
NAMES = ["cat", 'a "quoted" n\u00e4me', "\u732b", "x", "y"]


def classifier(name: str = "performer_rpe2d_tiny_patch16_224", **options: Any) -> Classifier:
    model = timm.create_model(name, img_size=32, **{**SMALL, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    videos = Videos(4, 2) if hasattr(model, "num_frames") else None
    return Classifier(model, data_config(model, 32), NAMES, videos, title=name)


class Small(nn.Module):
    """The least that has logits; of clips, too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 5)
        self.pretrained_cfg = {"architecture": "small"}

    def forward(self, x):
        return self.head(x.flatten(2).mean(2))


def small(videos: Videos | None = None) -> Classifier:
    config = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.25,) * 3}
    config.update(interpolation="bicubic", crop_pct=0.9, crop_mode="center")
    return Classifier(Small(), config, NAMES, videos, title="small")


def described(file) -> dict[str, Any]:
    if file.suffix == ".pt2":
        found = dict.fromkeys(("label_names", "preprocessing", "architecture", "source"), "")
        torch.export.load(file, extra_files=found)
    else:
        onnx = pytest.importorskip("onnx")
        found = {each.key: each.value for each in onnx.load(file).metadata_props}
    return {name: json.loads(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer_rpe2d_tiny_patch16_224", {}),
        ("performer_rpe2d_tiny_patch16_224", {"path": "product", "feature_map": "favor"}),
        ("vit_rpe2d_tiny_patch16_224", {}),
        ("performer_rpe3d_tiny_patch16_224", {**CLIPS, "rpe": "exponential"}),
    ],
    ids=str,
)
def test_pt2_computes_what_the_model_computes(tmp_path, name, options):
    made = classifier(name, **options)
    before = getattr(made.model, "path", None)
    comparison = export(made, tmp_path / "x.pt2")
    assert comparison.difference < 1e-4 and comparison.largest > 0.1
    assert sorted(comparison.batches) == [1, 2, 5] and getattr(made.model, "path", None) == before
    run = torch.export.load(tmp_path / "x.pt2").module()
    frames = [4] if made.videos else []
    images = torch.randn(3, 3, *frames, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(run(images), made.model(images), rtol=1e-4, atol=1e-4)


def test_the_metadata_say_how_to_use_the_file(tmp_path):
    made = small(Videos(4, 2))
    export(made, tmp_path / "x.pt2")
    found = described(tmp_path / "x.pt2")
    assert found["label_names"] == NAMES and found["architecture"] == "small"
    assert found["preprocessing"] == {
        **{"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic"},
        **{"crop_pct": 0.9, "crop_mode": "center", "size": [32, 32]},
        **{"num_frames": 4, "frame_stride": 2},
    }
    assert found == {name: json.loads(value) for name, value in metadata(made).items()}


def test_a_fixed_batch(tmp_path):
    comparison = export(small(), tmp_path / "x.pt2", batch_size=3)
    assert list(comparison.batches) == [3]
    with pytest.raises(Exception, match="3"):
        torch.export.load(tmp_path / "x.pt2").module()(torch.randn(2, 3, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("performer_rpe2d_tiny_patch16_224", {}), ("vit_rpe3d_tiny_patch16_224", CLIPS)],
    ids=str,
)
def test_onnx_in_onnxruntime(tmp_path, name, options):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made = classifier(name, **options)
    comparison = export(made, tmp_path / "x.onnx")
    assert comparison.difference < 1e-4 and list(tmp_path.iterdir()) == [tmp_path / "x.onnx"]
    found = described(tmp_path / "x.onnx")
    assert found["label_names"] == NAMES and found["preprocessing"]["size"] == [32, 32]
    session = runtime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape[0], logits.name) == ("images", "batch", "logits")
    x = torch.randn(4, *images.shape[1:])
    (out,) = session.run(None, {"images": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(out), made.model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_file_that_says_something_else_is_not_written(tmp_path, monkeypatch, wrong):
    def spoilt(program, inputs, shapes, described):
        data, run = formats.as_pt2(program, inputs, shapes, described)
        return data, lambda x: run(x) + wrong * run(x).abs().max()

    monkeypatch.setitem(formats.FORMATS, ".pt2", spoilt)
    with pytest.raises(ExportFailed, match="would not say what the model says"):
        export(small(), tmp_path / "x.pt2")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    """A model that looks at values, which no exporter can follow."""

    def forward(self, x):
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path):
    made = small()
    refused = Classifier(Branching(), made.config, NAMES)
    with pytest.raises(ValueError, match="it cannot be exported: ") as error:
        export(refused, tmp_path / "x.pt2")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="the ending is one of .onnx, .pt2"):
        export(made, tmp_path / "x.bin")


def test_weights_that_onnx_cannot_hold_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(formats, "LARGEST_ONNX", 10)
    with pytest.raises(ValueError, match="GiB, ONNX takes 2: write a .pt2 file"):
        export(small(), tmp_path / "x.onnx")
