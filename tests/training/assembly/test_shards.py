"""Shards of a recipe: made once by a data source, or a hint how to make them."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.data.samples import files, sample, write_shard
from tests.training.launch import train
from tests.training.runs import make_named, write_recipe
from vit_rpe.data import Images, ShardError
from vit_rpe.data.making import ImagePreparation, digits, make_shards
from vit_rpe.training.assembly import shards as inputs
from vit_rpe.training.recipe.schema import Recipe as TrainingRecipe

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


def refused(place: Path, *overrides: str) -> str:
    """The one line with which a recipe is refused."""
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides)
    assert code == 2 and shown.count("\n") == 1, shown
    return shown


def test_a_folder_of_images_names_the_tool_that_makes_shards(place):
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (place / "images" / "train" / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(place / "images" / "train" / name)
    line = refused(place, f"data_dir={place}/images")
    assert f"vit-rpe shards folder {place}/images SHARDS" in line
    assert "(vit-rpe shards makes shards)" in refused(place, "data_dir=nowhere")


def test_a_missing_validation_split_names_the_way_without(place):
    make_named(place / "only", NAMES, ("train",))
    line = refused(place, f"data_dir={place}/only")
    assert "no split 'val'" in line and "val_split=null trains without evaluation" in line
    assert "val_split=null" not in refused(place, "train_split=nonsense")


def test_more_classes_than_the_shards_have_and_lost_pixels_are_said(place):
    overrides = ["num_classes=7", "img_size=11", "experiment=odd"]
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides, "--dry-run")
    assert code == 0 and "7 classes (num_classes), of which the shards name 3" in shown, shown
    assert "warning: img_size 11 is no multiple of the patch size 4" in shown
    assert "does not see the last 3 rows and columns" in shown
    plain = train("--recipe", str(place / "a.yaml"), "--dry-run")[1]
    assert "warning" not in plain and "3 classes\n" in plain


RUN = {"model": "performer_rpe2d_tiny_patch16_224", "data_source": "digits"}


def start(folder: str, gate, results) -> None:
    gate.wait(30)
    try:
        opened = inputs._inputs(TrainingRecipe(**RUN, data_dir=folder), Images(), make=True)
        results.put((opened.train.digest, opened.val.digest))  # pyright: ignore
    except Exception as error:
        results.put(repr(error))


def test_runs_that_start_together_make_the_digits_once(tmp_path, monkeypatch):
    digits()  # imported before the processes are forked
    folder = tmp_path / "digits"
    fork = multiprocessing.get_context("fork")
    gate, results = fork.Barrier(3), fork.Queue()
    runs = [fork.Process(target=start, args=(str(folder), gate, results)) for _ in range(3)]
    for run in runs:
        run.start()
    found = [results.get(timeout=60) for _ in runs]
    for run in runs:
        run.join(30)
    assert len(set(found)) == 1 and len(found[0]) == 2, found
    assert not [name for name in files(folder) if name.startswith(".")]


def test_a_source_of_data_leaves_shards_of_others_alone(tmp_path):
    write_shard(tmp_path / "train-00000.tar", [sample(i) for i in range(5)])
    before = files(tmp_path)
    with pytest.raises(ShardError, match="train-00000.tar is there"):
        inputs._inputs(TrainingRecipe(**RUN, data_dir=str(tmp_path)), Images(), make=True)
    assert files(tmp_path) == before


def test_a_source_of_data_completes_what_was_begun(tmp_path, monkeypatch, capsys):
    make_shards(digits()["train"], tmp_path, "train", ImagePreparation())
    recipe = TrainingRecipe(**RUN, data_dir=str(tmp_path))
    assert inputs._inputs(recipe, Images(), make=True).val.num_samples == 355  # pyright: ignore
    monkeypatch.setattr(inputs, "make_shards", lambda *_, **__: pytest.fail("made again"))
    start = time.perf_counter()
    inputs._inputs(recipe, Images(), make=True)
    assert time.perf_counter() - start < 5
    line = f"vit_rpe makes the data, once: digits, in {tmp_path}\n"
    assert capsys.readouterr().err.count(line) == 1  # it takes a while, so it is announced
