"""`data_source`: shards that a run makes if they are not there."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from tests.data.samples import files, sample, write_shard
from vit_rpe.data import Images, ShardError
from vit_rpe.data.making import ImagePreparation, digits, make_shards
from vit_rpe.training.assembly import shards as inputs
from vit_rpe.training.recipe.schema import Recipe as TrainingRecipe

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


def test_a_source_of_data_completes_what_was_begun(tmp_path, monkeypatch):
    make_shards(digits()["train"], tmp_path, "train", ImagePreparation())
    recipe = TrainingRecipe(**RUN, data_dir=str(tmp_path))
    assert inputs._inputs(recipe, Images(), make=True).val.num_samples == 355  # pyright: ignore
    monkeypatch.setattr(inputs, "make_shards", lambda *_, **__: pytest.fail("made again"))
    start = time.perf_counter()
    inputs._inputs(recipe, Images(), make=True)
    assert time.perf_counter() - start < 5
