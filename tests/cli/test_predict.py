"""The command `vit-rpe predict` on a run of images and one of videos."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import encoded
from tests.training.launch import train
from tests.training.runs import RICH, make_data, write_recipe
from tests.training.video_runs import VIDEO, make_videos
from vit_rpe.data import SampleReader, open_shards
from vit_rpe.inference import load_classifier, predict


def command(name: str, *arguments: str) -> int:
    return import_module(f"vit_rpe.cli.{name}").main(list(arguments))


def as_files(data: str, split: str, folder: Path, endings: tuple[str, ...]) -> dict[str, int]:
    """The samples of a split as files; their labels by name."""
    shards = open_shards(data, split, endings=endings)
    folder.mkdir()
    labels = {}
    for each in SampleReader(shards).read(np.arange(shards.num_samples)):
        ending = "zip" if each.data[:2] == b"PK" else endings[0]
        path = folder / f"{each.key}.{ending}"
        path.write_bytes(each.data)
        labels[str(path)] = each.label
    return labels


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    values = {**RICH, "data_dir": make_data(folder / "data"), "output": str(folder), "epochs": 2}
    code, shown = train("--recipe", write_recipe(folder / "run.yaml", **values))
    assert code == 0, shown
    as_files(f"{folder}/data", "val", folder / "files", ("png",))
    return folder


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("predict_videos")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    code, shown = train("--recipe", write_recipe(folder / "run.yaml", **values, epochs=2))
    assert code == 0, shown
    return folder


def figures(table: str, labels: dict[str, int]) -> tuple[float, float, np.ndarray]:
    """Loss, accuracy and confusion matrix of predictions of all ten classes."""
    losses, confusion = [], np.zeros((10, 10), int)
    for row in csv.DictReader(io.StringIO(table)):
        label, index = labels[row["file"]], int(row["index"])
        if index == label:
            losses.append(-math.log(float(row["probability"])))
        confusion[label, index] += row["rank"] == "1"
    assert len(losses) == len(labels) == confusion.sum()
    return float(np.mean(losses)), 100 * float(confusion.trace()) / len(labels), confusion


def evaluated(output: Path, side: int) -> tuple[float, float, np.ndarray]:
    with open(output / "run" / "results.csv") as file:
        row = next(csv.DictReader(file))
    with open(output / "run" / f"confusion-{side}.csv") as file:
        table = [cells[1:] for cells in list(csv.reader(file))[1:]]
    return float(row["loss"]), float(row["top1"]), np.array(table, int)


def assert_same(ours: tuple, theirs: tuple) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1] == pytest.approx(theirs[1], abs=1e-3) and (ours[2] == theirs[2]).all()


@pytest.mark.parametrize("options", [[], ["--img-size", "12", "--crop-pct", "0.6", "--no-ema"]])
def test_predictions_on_the_pictures_of_a_split_are_those_of_evaluate(place, options, capsys):
    base = ["--checkpoint", f"{place}/run", "--workers", "0", *options]
    output = place / f"evaluation{len(options)}"
    command("evaluate", *base, "--data", f"{place}/data", "--output", str(output))
    capsys.readouterr()
    more = ["--format", "csv", "--top-k", "10", "--batch-size", "4"]
    assert command("predict", f"{place}/files", *base, *more) == 0
    samples = SampleReader(open_shards(f"{place}/data", "val")).read(np.arange(21))
    labels = {f"{place}/files/{each.key}.png": each.label for each in samples}
    side = 12 if options else 8
    assert_same(figures(capsys.readouterr().out, labels), evaluated(output, side))


def test_predictions_on_the_videos_of_a_split_are_those_of_evaluate(videos, capsys):
    labels = as_files(f"{videos}/data", "train", videos / "files", ("mp4", "zip"))
    base = ["--checkpoint", f"{videos}/run", "--workers", "0"]
    for views in ([], ["--clips", "1", "--crops", "1", "--frame-stride", "whole"]):
        output = videos / f"evaluation{len(views)}"
        shards = ["--data", f"{videos}/data", "--split", "train"]
        command("evaluate", *base, *views, *shards, "--output", str(output))
        capsys.readouterr()
        more = ["--format", "csv", "--top-k", "10"]
        assert command("predict", f"{videos}/files", *base, *views, *more) == 0
        assert_same(figures(capsys.readouterr().out, labels), evaluated(output, 8))


def test_a_video_model_takes_frames_and_images(videos, tmp_path, capsys):
    (tmp_path / "frames").mkdir()
    for number in range(6):
        (tmp_path / "frames" / f"{number}.png").write_bytes(encoded(number))
    (tmp_path / "still.png").write_bytes(encoded(9))
    inputs = [f"{tmp_path}/frames", f"{tmp_path}/still.png"]
    base = ["--checkpoint", f"{videos}/run", "--output", f"{tmp_path}/x.json"]
    assert command("predict", *inputs, *base, "--output", f"{tmp_path}/x.png") == 0
    found = json.loads((tmp_path / "x.json").read_text())
    assert [each["file"] for each in found] == inputs
    assert all(len(each["predictions"]) == 3 for each in found)
    assert Image.open(tmp_path / "x.png").size[0] > 300


def test_bad_files_are_named_and_counted_and_the_rest_is_predicted(place, tmp_path, capsys):
    good = sorted((place / "files").iterdir())[0]
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    (tmp_path / "notes.txt").write_text("x")
    inputs = [f"{tmp_path}/nowhere.png", str(good), str(tmp_path)]
    output = tmp_path / "x.csv"
    code = command("predict", *inputs, "--checkpoint", f"{place}/run", "--output", str(output))
    shown = capsys.readouterr()
    assert code == 2 and shown.out == ""
    assert shown.err.splitlines() == [
        f"bad: {tmp_path}/nowhere.png: No such file or directory",
        f"bad: {tmp_path}/bad.png: not an image in one of JPEG, PNG, WEBP, BMP, GIF, PPM, TIFF",
        f"{output}: 3 files",
        "passed over: 1 x .txt",
        "2 of 3 files could not be read",
    ]
    rows = list(csv.DictReader(output.open()))
    assert [row["file"] for row in rows if row["rank"]] == [str(good)] * 3


def test_a_table_is_printed(place, capsys):
    file = str(sorted((place / "files").iterdir())[0])
    assert command("predict", file, "--checkpoint", f"{place}/run", "--top-k", "2") == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.startswith(f"{file}  ") and shown.out.count(" %") == 2


def test_standard_input_is_a_file_or_a_list(place, monkeypatch, capsys):
    file = sorted((place / "files").iterdir())[3]
    base = ["--checkpoint", f"{place}/run", "--format", "json"]
    command("predict", str(file), *base)
    [expected] = json.loads(capsys.readouterr().out)
    for data, arguments, name in (
        (file.read_bytes(), ["-"], "-"),
        (f"{file}\n\n".encode(), ["--files-from", "-"], str(file)),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert command("predict", *arguments, *base) == 0
        assert json.loads(capsys.readouterr().out) == [{**expected, "file": name}]
    listed = place / "list"
    listed.write_text(f"{file}\nnowhere\n")
    assert command("predict", "--files-from", str(listed), *base) == 2


def test_random_weights_are_said_to_be_random(place, capsys):
    file = str(sorted((place / "files").iterdir())[0])
    model = ["--model", "resnet10t", "--num-classes", "4", "--img-size", "32"]
    assert command("predict", file, *model) == 0
    assert "warning: the weights of resnet10t are random" in capsys.readouterr().err
    local = ["--model", f"local-dir:{place}/run/checkpoints/best"]
    assert command("predict", file, *local) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{files}", "--checkpoint", "nowhere"], "no checkpoint at nowhere"),
        (["{files}", "--model", "nonsense"], "nonsense cannot be built: Unknown model"),
        (["{files}", "--device", "cuda", "--checkpoint", "{run}"], "there is no CUDA device here"),
        (["{files}", "--clips", "2", "--checkpoint", "{run}"], "clips: options for videos"),
        (["{files}", "--crop-pct", "9", "--checkpoint", "{run}"], "crop_pct: Input should be"),
        (["{data}", "--checkpoint", "{run}"], "there are only other files, 2 x .tar"),
        (["{empty}", "--checkpoint", "{run}"], "nothing to predict: no files"),
        (["--files-from", "nowhere", "--checkpoint", "{run}"], "No such file"),
        (["--checkpoint", "{run}"], "name an image, a video, a folder or -"),
        (["-", "--files-from", "-", "--checkpoint", "{run}"], "(-) can be read once"),
        (["{files}", "--checkpoint", "{run}", "--output", "x.pdf"], "one of .csv, .json, .txt"),
        (["{files}", "--checkpoint", "{run}", "--output", "no/x.csv"], "cannot write a file"),
        (["{files}"], "one of the arguments --checkpoint --model is required"),
    ],
)
def test_wrong_input_gives_one_line(place, tmp_path, capsys, arguments, message):
    (tmp_path / "empty").mkdir()
    data = tmp_path / "shards"
    data.mkdir()
    for name in ("a.tar", "b.tar"):
        (data / name).write_bytes(b"")
    known = {"files": f"{place}/files", "run": f"{place}/run", "data": str(data)}
    values = [each.format(**known, empty=tmp_path / "empty") for each in arguments]
    with pytest.raises(SystemExit) as stop:
        command("predict", *values)
    shown = capsys.readouterr()
    assert stop.value.code == 2 and shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("vit-rpe predict: error: ") and message in shown.err


def test_several_processes_are_refused(place, monkeypatch, capsys):
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        command("predict", f"{place}/files", "--checkpoint", f"{place}/run")
    assert "are made by one process" in capsys.readouterr().err


def test_workers_change_nothing(place):
    classifier = load_classifier(f"{place}/run")
    files = [place / "files", place / "nowhere.png"]
    one, two = (list(predict(classifier, files, batch_size=4, workers=n)) for n in (0, 2))
    assert one == two and len(one) == 22 and one[-1].error == "No such file or directory"


def test_in_python(place):
    classifier = load_classifier(place / "run", img_size=12)
    [found] = predict(classifier, encoded(1), top_k=20, pictures=1)
    assert found.file == "-" and found.picture is not None and found.picture.shape == (12, 12, 3)
    assert sum(guess.probability for guess in found.guesses) == pytest.approx(1)
    assert [guess.name for guess in found.guesses] == [str(g.index) for g in found.guesses]
    assert found.best == max(found.guesses, key=lambda guess: guess.probability)
