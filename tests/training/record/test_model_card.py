"""The model card of the best checkpoint, as the Hub reads it."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard as HubCard

from tests.training.launch import train
from tests.training.runs import make_named, write_recipe
from vit_rpe.training import find_model
from vit_rpe.training.recipe.schema import Recipe
from vit_rpe.training.record.model_card import CARD, ModelCard, escaped

NAMES = ["cat", "d*g `x`", "<b>owl</b>", "\u732b", "a", "b"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    make_named(folder / "secret" / "owls & cats", NAMES)
    values = {
        "data_dir": f"{folder}/secret/owls & cats",
        "output": str(folder),
        "num_classes": None,
    }
    write_recipe(folder / "a.yaml", **values, epochs=3, model_ema=True, eval_ema=False)
    code, shown = train("--recipe", str(folder / "a.yaml"), "experiment=run", "checkpoint_hist=9")
    assert code == 0, shown
    return folder


def best(place: Path) -> Path:
    return (place / "run" / "checkpoints" / "best").resolve()


def test_the_hub_reads_what_was_measured(place):
    rows = list(csv.DictReader((place / "run" / "summary.csv").open()))
    row = rows[int(best(place).name.split("-")[1]) - 1]
    for file, prefix in ((CARD, "eval"), (f"ema/{CARD}", "ema")):
        card = HubCard((best(place) / file).read_text())
        assert card.data.library_name == "timm" and card.data.model_name == "run"
        assert card.data.tags == ["image-classification", "timm", "vit_rpe"]
        assert card.data.datasets == ["owls-cats"] and card.data.metrics == ["accuracy"]
        results = card.data.eval_results
        assert [each.metric_name for each in results] == ["top1, %", "top5, %"]
        assert all(each.dataset_name == "owls & cats" for each in results)
        assert all(each.dataset_split == "val" for each in results)
        for each, key in zip(results, ("top1", "top5"), strict=True):
            assert each.metric_value == pytest.approx(float(row[f"{prefix}_{key}"]), abs=1e-4)


def test_only_checkpoints_that_were_the_best_have_one(place):
    folders = [path for path in (place / "run" / "checkpoints").iterdir() if not path.is_symlink()]
    scores = {}
    for number, row in enumerate(csv.DictReader((place / "run" / "summary.csv").open()), 1):
        scores[f"epoch-{number:04d}"] = float(row["eval_top1"])
    highest = -1.0
    for folder in sorted(folders):
        better, highest = scores[folder.name] > highest, max(highest, scores[folder.name])
        assert (folder / CARD).exists() == (folder / "ema" / CARD).exists() == better


def test_names_are_shown_as_they_are_and_folders_are_not(place):
    text = (best(place) / CARD).read_text()
    assert escaped("d*g `x`") in text and "&lt;b&gt;owl&lt;/b&gt;" in text and "<b>" not in text
    assert str(place) not in text and "secret" not in text
    recipe = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert recipe["model_kwargs"]["embed_dim"] == 16 and recipe["epochs"] == 3
    assert not {"data_dir", "output", "experiment", "workers"} & set(recipe)


def test_its_example_runs(place):
    example = (best(place) / CARD).read_text().split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(example.replace("FOLDER", str(best(place))), names)
    assert names["model"](torch.randn(1, 3, 8, 8)).shape == (1, 6)


def test_people_may_change_it(place, tmp_path):
    copy = shutil.copytree(place / "run", tmp_path / "run", symlinks=True)
    for file in copy.rglob(CARD):
        file.write_text("mine")
    assert find_model(copy).name == "ema"
    code, shown = train(
        *("--recipe", f"{place}/a.yaml", "experiment=run", f"output={tmp_path}"),
        *("checkpoint_hist=9", "resume=auto"),
    )
    assert code == 0, shown


def card(**values) -> ModelCard:
    fixed = {"model": "resnet10t", "data_dir": "/home/jane/---\nevil: 1", "val_split": "a: [b"}
    recipe = Recipe(**{**fixed, **values})
    names = ["---", "```", "{fence}", "%s\x1b[31m"]
    return ModelCard("a: 'b' # {title}", recipe, 10**6, (8, 8), 4, names, 10, 5)


ROW = {"epoch": 3, "eval_top1": 51.23456, "eval_top5": 100.0, "eval_loss": float("inf")}


def test_nothing_breaks_out_of_its_place():
    made = card(initial_checkpoint="/home/jane/```/x.safetensors", model_kwargs={"x": "````"})
    text = made.text(ROW, "eval")
    hub = HubCard(text)
    assert hub.data.model_name == "a: 'b' # {title}" and "evil" not in hub.data.to_dict()
    assert hub.data.eval_results[0].dataset_split == "a: [b"
    assert hub.data.eval_results[0].dataset_name == "---\nevil: 1"
    assert [each.metric_value for each in hub.data.eval_results] == [51.2346]  # of 4 classes
    fence = "`" * 5
    assert text.count(fence) == 2 and f"{fence}yaml\n" in text
    assert yaml.safe_load(text.split(f"{fence}yaml\n")[1].split(fence)[0])["model"] == "resnet10t"
    assert "jane" not in text.replace(made.recipe.data_dir, "") and "\x1b" not in text


def test_videos_and_parts_of_the_training_split():
    made = card(num_frames=8, val_fraction=0.25, data_dir="x", model="local-dir:/home/jane/m")
    hub = HubCard(made.text(ROW, "eval"))
    assert hub.data.pipeline_tag == "video-classification"
    assert hub.data.eval_results[0].dataset_split == "train"
    assert "clips of 8 frames of 8 x 8" in hub.text and "val\\_fraction 0.25 of train" in hub.text
    assert "/home/jane" not in hub.text


def test_the_same_card_after_a_stop(place, tmp_path):
    """It is a function of the run's state: no date, no folder."""
    arguments = ["--recipe", f"{place}/a.yaml", "experiment=run", f"output={tmp_path}"]
    code, shown = train(*arguments, "checkpoint_hist=9", "epochs=3")
    assert code == 0, shown
    for ours, theirs in zip(
        *(sorted(p.rglob(CARD)) for p in (place / "run", tmp_path / "run")), strict=True
    ):
        assert os.path.relpath(ours, place) == os.path.relpath(theirs, tmp_path)
        assert ours.read_text() == theirs.read_text()
