"""The evaluation tool on a run that the trainer made, and on timm's own models."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.training.launch import launch, train
from tests.training.runs import RICH, make_data, make_named, write_recipe
from tests.training.video_runs import VIDEO, make_videos


def load_tool():
    return import_module("vit_rpe.cli.evaluate")


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
    return list(csv.DictReader((folder / "run" / "results.csv").open()))


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
        ours, theirs = (results / world / "run" / name for world in ("one", "two"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_tables_count_every_sample(results):
    folder = results / "one" / "run"
    table = list(csv.reader((folder / "confusion-8.csv").open()))
    assert sum(int(count) for row in table[1:] for count in row[1:]) == 21
    classes = list(csv.DictReader((folder / "per_class-8.csv").open()))
    assert sum(int(row["samples"]) for row in classes) == 21
    assert json.loads((folder / "results.json").read_text())[0]["top1_err"] <= 100


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
    assert stop.value.code == 2
    assert text.startswith("vit-rpe evaluate: error: ") and message in text and "\n" not in text


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
        ([*base, "--crop-pct", "1.5"], "crop_pct of clips is at most 1"),
        ([*base, "--crop-pct", "1e-9"], "crop_pct: Input should be greater than or equal to 0.1"),
    ):
        with pytest.raises(SystemExit) as stop:
            evaluate(*arguments)
        assert message in str(stop.value) and "\n" not in str(stop.value)


# --- classes by name, results side by side, checkpoints that are wrong


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> Path:
    """A run on shards with named classes, and shards with these and with other classes."""
    folder = tmp_path_factory.mktemp("named")
    data = make_named(folder / "data", ["cat", "dog", "owl"])
    make_named(folder / "turned", ["owl", "cat", "dog"])
    make_named(folder / "others", ["ant", "bee", "cat"])
    values = {"data_dir": data, "output": str(folder), "num_classes": None, "epochs": 2}
    code, shown = train("--recipe", write_recipe(folder / "run.yaml", **values))
    assert code == 0, shown
    return folder


def run_named(named: Path, data: str, *options: str) -> str:
    arguments = ["--checkpoint", f"{named}/run", "--data", f"{named}/{data}", "--workers", "0"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        load_tool().main([*arguments, *options])
    return shown.getvalue()


def test_shards_with_other_classes_are_refused_or_go_by_name(named):
    with pytest.raises(SystemExit, match="3 classes .owl, cat, dog., the checkpoint was trained"):
        run_named(named, "turned")
    with pytest.raises(SystemExit, match="was not trained on 2 classes .ant, bee. of the shards"):
        run_named(named, "others", "--map-classes")
    run_named(named, "data", "--output", f"{named}/straight")
    run_named(named, "turned", "--map-classes", "--output", f"{named}/mapped")
    read = [list(csv.reader((named / x / "run" / "confusion-8.csv").open())) for x in ORDERS]
    (_, *first), (_, *second) = (table[0] for table in read)
    assert first == ["cat", "dog", "owl"] and second == ["owl", "cat", "dog"]
    # the images are the same, and the model says the same names about them
    straight, mapped = (np.array([r[1:] for r in table[1:]], int).sum(0) for table in read)
    assert dict(zip(first, straight, strict=True)) == dict(zip(second, mapped, strict=True))


ORDERS = ("straight", "mapped")


def test_results_of_several_models_lie_apart(named):
    output = ["--output", f"{named}/results"]
    run_named(named, "data", *output, "--img-size", "8,12")
    other = ["--model", "resnet10t", "--num-classes", "3", "--img-size", "32", "--workers", "0"]
    load_tool().main([*other, "--data", f"{named}/data", *output])
    run_named(named, "data", "--split", "train", *output)
    run_named(named, "data", *output)  # again: its own are replaced, and no table stays behind
    found = {str(f.relative_to(named / "results")) for f in (named / "results").rglob("*.csv")}
    tables = {
        f"{model}/{name}-{size}.csv"
        for model, size in (("run", 8), ("run-2", 8), ("resnet10t", 32))
        for name in ("per_class", "confusion")
    }
    assert found == {f"{model}/results.csv" for model in ("run", "run-2", "resnet10t")} | tables


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {**c, "num_classes": -1}, "config.json says -1 classes, and model.safetensors"),
        (lambda c: {**c, "num_classes": 7}, "says 7 classes, and model.safetensors has 3"),
        (lambda c: [], "architecture should be a str, got None"),
        (lambda c: {**c, "pretrained_cfg": []}, "pretrained_cfg should be a dict, got []"),
        (lambda c: {**c, "model_args": [1]}, "cannot be built"),
        (lambda c: cfg(c, label_names=[1]), "label_names should be a list of names, got [1]"),
        (lambda c: cfg(c, crop_pct=1e-9), "crop_pct: Input should be greater than or equal"),
        (lambda c: cfg(c, mean=["x"]), "mean"),
        (lambda c: cfg(c, interpolation=[1]), "interpolation: Input should be a valid string"),
    ],
)
def test_a_config_that_is_wrong_gives_one_line(named, tmp_path, change, message):
    folder = model_alone(named, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(change(config)))
    refuse(folder, f"{named}/data", message)


def model_alone(named: Path, tmp_path: Path) -> Path:
    """The best model in a folder of its own, without the checksums of a checkpoint."""
    folder = tmp_path / "checkpoint"
    best = (named / "run" / "checkpoints" / "best").resolve()
    return Path(shutil.copytree(best, folder, ignore=shutil.ignore_patterns("state.json")))


def cfg(config: dict, **changes) -> dict:
    return {**config, "pretrained_cfg": {**config["pretrained_cfg"], **changes}}


def refuse(place: Path, data: str, message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        load_tool().main(["--checkpoint", str(place), "--data", data, "--workers", "0"])
    text = str(stop.value)
    assert stop.value.code == 2 and message in text and "\n" not in text and len(text) < 500


def test_weights_that_are_cut_off_and_runs_without_any(named, tmp_path):
    folder = model_alone(named, tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuse(folder, f"{named}/data", "is not a safetensors file")
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "recipe.yaml").touch()
    refuse(folder, f"{named}/data", "is a run that has no checkpoint yet")


def test_a_checkpoint_without_names_evaluates_as_before(named, tmp_path):
    folder = model_alone(named, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["pretrained_cfg"]["label_names"]
    config["pretrained_cfg"]["num_classes"] = 1000  # as they were written once
    (folder / "config.json").write_text(json.dumps(config))
    load_tool().main(["--checkpoint", str(folder), "--data", f"{named}/turned", "--workers", "0"])


def test_the_validation_part_that_a_run_was_judged_by(place, tmp_path, capsys):
    options = ("val_fraction=0.3", "experiment=part", "model_ema=false", "epochs=1")
    code, shown = train("--recipe", str(place / "run.yaml"), *options, "warmup_epochs=0")
    assert code == 0, shown
    (row,) = csv.DictReader((place / "part" / "summary.csv").open())
    base = ["--checkpoint", f"{place}/part", "--data", f"{place}/data", "--workers", "0"]
    for given in (["--val-fraction"], ["--val-fraction", "0.3", "--split", "train"]):
        evaluate(*base, *given, "--output", str(tmp_path))
        shown = capsys.readouterr()
        assert (
            "part at 8, val_fraction 0.3 of train: top-1 " in shown.out
            and "warning" not in shown.err
        )
    (found,) = json.loads((tmp_path / "part" / "results.json").read_text())
    assert found["loss"] == pytest.approx(float(row["eval_loss"]), rel=1e-6)
    assert found["val_fraction"] == 0.3 and found["split"] == "train" and found["samples"] < 25
    evaluate(*base, "--output", str(tmp_path))
    (whole,) = json.loads((tmp_path / "part-2" / "results.json").read_text())
    assert whole["split"] == "val" and whole["samples"] == 21 and whole["val_fraction"] == 0


def test_a_part_that_the_run_trained_on_is_a_warning(place, capsys):
    base = ["--checkpoint", f"{place}/run", "--data", f"{place}/data", "--workers", "0"]
    evaluate(*base, "--val-fraction", "0.5")
    assert (
        "the run trained on samples of this part: its val_fraction is 0" in capsys.readouterr().err
    )
    for given, text in (
        (["--val-fraction"], "--val-fraction needs a number"),
        (
            ["--val-fraction", "1"],
            "argument --val-fraction: wanted a number between 0 and 1, got '1'",
        ),
    ):
        with pytest.raises(SystemExit) as stop:
            evaluate(*base, *given)
        assert stop.value.code == 2 and text in capsys.readouterr().err
