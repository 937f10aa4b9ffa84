"""The evaluation tool on a run that the trainer made, and on timm's own models."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.training.launch import launch, train
from tests.training.runs import RICH, make_data, write_recipe
from tests.training.test_video import VIDEO, make_videos

TOOLS = Path(__file__).parents[2] / "tools"


def load_tool():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("evaluate_tool", TOOLS / "evaluate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evaluate(*arguments: str) -> None:
    load_tool().main(list(arguments))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    values = {**RICH, "data_dir": make_data(folder / "data"), "output": str(folder)}
    code, shown = train("--recipe", write_recipe(folder / "run.yaml", **values))
    assert code == 0, shown
    return folder


@pytest.fixture(scope="module")
def results(place) -> Path:
    base = ["--checkpoint", f"{place}/run", "--data", f"{place}/data", "--workers", "0"]
    launch(evaluate, *base, "--img-size", "8,12", "--output", f"{place}/one")
    launch(evaluate, *base, "--img-size", "8,12", "--output", f"{place}/two", world=2)
    launch(evaluate, *base, "--no-ema", "--output", f"{place}/plain")
    return place


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").open()))


def test_figures_are_those_of_the_trainer(results):
    summary = list(csv.DictReader((results / "run" / "summary.csv").open()))
    best = (results / "run" / "checkpoints" / "best").resolve().name
    row = summary[int(best.split("-")[1]) - 1]
    one, plain = rows(results / "one")[0], rows(results / "plain")[0]
    assert float(one["loss"]) == pytest.approx(float(row["ema_loss"]), rel=1e-6)
    assert float(one["top1"]) == pytest.approx(float(row["ema_top1"]), abs=1e-4)
    assert float(plain["loss"]) == pytest.approx(float(row["eval_loss"]), rel=1e-6)
    assert plain["samples"] == "21" and plain["bad_samples"] == "0"


def test_two_processes_give_the_same_figures(results):
    one, two = rows(results / "one"), rows(results / "two")
    assert [row["img_size"] for row in one] == ["8", "12"]
    for ours, theirs in zip(one, two, strict=True):
        assert {**ours, "img_per_s": "", "peak_memory_mb": ""} == {
            **theirs,
            "img_per_s": "",
            "peak_memory_mb": "",
        }
    for name in ("confusion-8.csv", "per_class-12.csv"):
        assert (results / "one" / name).read_bytes() == (results / "two" / name).read_bytes()


def test_tables_count_every_sample(results):
    table = list(csv.reader((results / "one" / "confusion-8.csv").open()))
    assert sum(int(count) for row in table[1:] for count in row[1:]) == 21
    classes = list(csv.DictReader((results / "one" / "per_class-8.csv").open()))
    assert sum(int(row["samples"]) for row in classes) == 21
    assert json.loads((results / "one" / "results.json").read_text())[0]["top1_err"] <= 100


def test_any_model_of_timm(place, capsys):
    load_tool().main(
        ["--model", "resnet10t", "--num-classes", "10", "--img-size", "32"]
        + ["--data", f"{place}/data", "--workers", "0"]
    )
    assert "resnet10t at 32: top-1 " in capsys.readouterr().out


def test_damaged_weights_are_refused(place, tmp_path, capsys):
    folder = shutil.copytree(place / "run" / "checkpoints" / "best", tmp_path / "best")
    base = ["--checkpoint", str(folder), "--data", f"{place}/data", "--workers", "0"]
    for name, more in (("ema/model.safetensors", []), ("config.json", ["--no-ema"])):
        file = folder / name
        file.write_bytes(file.read_bytes()[:-3] + b" }\n")
        with pytest.raises(SystemExit) as stop:
            evaluate(*base, *more)
        text = f"{stop.value}{capsys.readouterr().err}"
        assert f"{name} is damaged: its checksum is not the one in" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "nowhere"], "no checkpoint at nowhere"),
        (["--model", "nonsense"], "nonsense cannot be built: Unknown model (nonsense)"),
        (["--model", "resnet10t", "--split", "test"], "has the split 'test' in its name"),
        (["--model", "resnet10t", "--device", "cuda"], "there is no CUDA device here"),
    ],
)
def test_wrong_input_gives_one_line(place, arguments, message):
    with pytest.raises(SystemExit) as stop:
        load_tool().main([*arguments, "--data", f"{place}/data", "--workers", "0"])
    text = str(stop.value)
    assert text.startswith("evaluate: error: ") and message in text and "\n" not in text


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    code, shown = train("--recipe", write_recipe(folder / "run.yaml", **values, epochs=2))
    assert code == 0, shown
    return folder


def test_videos_as_in_the_trainer_and_with_other_sizes_and_frames(videos):
    base = ["--checkpoint", f"{videos}/run", "--data", f"{videos}/data", "--workers", "0"]
    launch(evaluate, *base, "--output", f"{videos}/one")  # clips and crops as in the recipe
    launch(evaluate, *base, "--output", f"{videos}/two", world=2)
    summary = list(csv.DictReader((videos / "run" / "summary.csv").open()))
    best = (videos / "run" / "checkpoints" / "best").resolve().name
    row, one = summary[int(best.split("-")[1]) - 1], rows(videos / "one")[0]
    assert float(one["loss"]) == pytest.approx(float(row["eval_loss"]), rel=1e-6)
    assert one["samples"] == "7" and rows(videos / "two")[0]["loss"] == one["loss"]
    more = ["--img-size", "8,12", "--num-frames", "6", "--frame-stride", "whole"]
    launch(evaluate, *base, *more, "--output", f"{videos}/other")
    assert [row["img_size"] for row in rows(videos / "other")] == ["8", "12"]
    launch(evaluate, *base, "--num-frames", "2", "--output", f"{videos}/fewer")
    assert rows(videos / "fewer")[0]["samples"] == "7"
    views = ["--clips", "1", "--crops", "1", "--frame-stride", "2"]
    launch(evaluate, *base, *views, "--output", f"{videos}/views")
    assert rows(videos / "views")[0]["loss"] != one["loss"]


def test_a_video_model_takes_images_as_still_clips(videos, results):
    base = ["--checkpoint", f"{videos}/run", "--data", f"{results}/data", "--workers", "0"]
    launch(evaluate, *base, "--output", f"{videos}/still")
    assert int(rows(videos / "still")[0]["samples"]) > 8
    with pytest.raises(SystemExit, match="clips: options for videos, and the data is of images"):
        evaluate(*base, "--clips", "2")


def test_wrong_frames_give_one_line(videos, results):
    base = ["--checkpoint", f"{videos}/run", "--data", f"{videos}/data", "--workers", "0"]
    image = ["--checkpoint", f"{results}/run", "--data", f"{results}/data", "--workers", "0"]
    for arguments, message in (
        ([*base, "--num-frames", "3"], "num_frames must be a multiple of tubelet_size"),
        ([*base, "--frame-stride", "3"], "too short: 7 frames, a clip needs 10"),
        ([*image, "--num-frames", "4"], "this is one of images"),
        ([*image, "--crops", "3"], "crops: options for videos, and the model is of images"),
        ([*base, "--crop-pct", "0"], "crop_pct of clips is at most 1"),
    ):
        with pytest.raises(SystemExit) as stop:
            evaluate(*arguments)
        assert message in str(stop.value) and "\n" not in str(stop.value)
