"""The command `vit-rpe export` on a run, and what it refuses."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.training.launch import train
from tests.training.runs import make_named, write_recipe
from vit_rpe.inference import load_classifier

NAMES = ["cat", "dog", "owl"]


def export(*arguments: str) -> int:
    return import_module("vit_rpe.cli.export").main(list(arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    values = {"data_dir": make_named(folder / "data", NAMES), "output": str(folder)}
    recipe = write_recipe(folder / "run.yaml", **values, num_classes=None, epochs=2)
    code, shown = train("--recipe", recipe)
    assert code == 0, shown
    return folder


@pytest.mark.parametrize("spelling", [[], ["--checkpoint"]])
def test_a_run_in_another_resolution(place, capsys, spelling):
    file = place / "x.pt2"
    assert export(*spelling, f"{place}/run", "--output", str(file), "--img-size", "12") == 0
    shown = capsys.readouterr()
    assert shown.err == "" and f"{place}/run is in {file}, " in shown.out
    assert "its logits differ by at most " in shown.out
    found = {"label_names": "", "preprocessing": ""}
    run = torch.export.load(file, extra_files=found).module()
    assert json.loads(found["label_names"]) == NAMES
    assert json.loads(found["preprocessing"])["size"] == [12, 12]
    images = torch.randn(4, 3, 12, 12)
    model = load_classifier(f"{place}/run", img_size=12).model
    with torch.no_grad():
        torch.testing.assert_close(run(images), model(images), rtol=1e-4, atol=1e-4)


def test_random_weights_are_said_to_be_random(place, capsys):
    model = ["--model", "resnet10t", "--num-classes", "3", "--img-size", "32"]
    assert export(*model, "--output", f"{place}/y.pt2") == 0
    assert "warning: the weights of resnet10t are random" in capsys.readouterr().err


def test_a_failed_comparison_is_an_error_of_the_program(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vit_rpe.inference.export_file.TOLERANCE", -1.0)
    assert export(f"{place}/run", "--output", f"{tmp_path}/x.pt2") == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "would not say what the model says, and is not" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--output", "x.pt2"], "no checkpoint at nowhere"),
        (["{run}", "--output", "x.bin"], "the ending is one of .onnx, .pt2, got 'x.bin'"),
        (["{run}", "--output", "no/x.pt2"], "cannot write a file"),
        (["{run}"], "--output"),
        (["--output", "x.pt2"], "one model is required"),
        (["{run}", "--checkpoint", "{run}", "--output", "x.pt2"], "one model is required"),
        (["{run}", "--num-frames", "4", "--output", "x.pt2"], "this is one of images"),
    ],
)
def test_wrong_input_gives_one_line(place, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        export(*(each.format(run=f"{place}/run") for each in arguments))
    shown = capsys.readouterr()
    assert stop.value.code == 2 and shown.err.count("\n") == 1 and message in shown.err
    assert shown.err.startswith("vit-rpe export: error: ") and not list(tmp_path.iterdir())
