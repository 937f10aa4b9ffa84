"""Shards of others are left alone, and makers of the same shards wait for each other."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path

import pytest

from tests.data.samples import encoded, sample, write_shard
from vit_rpe.data import BadSamples, FolderBusy, FolderLock, Images, ShardError
from vit_rpe.data.making import ImagePreparation, digits, image_folder, make_shards
from vit_rpe.training.assembly import shards as inputs
from vit_rpe.training.recipe.schema import Recipe as TrainingRecipe


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def source():
    return digits()["val"]


def test_a_shard_that_nobody_knows_is_never_written_over(source, tmp_path):
    theirs = write_shard(tmp_path / "val-00001.tar", [sample(0)])
    before = files(tmp_path)
    with pytest.raises(ShardError, match="val-00001.tar is there, and neither _info.json nor"):
        make_shards(source, tmp_path, "val", ImagePreparation(100))
    assert files(tmp_path) == before
    theirs.rename(tmp_path / "x.tar")
    make_shards(source, tmp_path, "val", ImagePreparation(100))


def test_shards_whose_info_is_lost_are_never_written_over(source, tmp_path):
    make_shards(source, tmp_path, "val", ImagePreparation(100))
    (tmp_path / "_info.json").unlink()
    (tmp_path / "bad_samples-val.csv").write_text("shard,key,reason\ns,k,r\n")
    before = files(tmp_path)
    with pytest.raises(ShardError, match="val-00000.tar is there, and neither"):
        make_shards(source, tmp_path, "val", ImagePreparation(100))
    assert files(tmp_path) == before


def test_an_index_or_link_that_nobody_knows_is_never_written_over(source, tmp_path):
    (tmp_path / "_index-val.npy").write_text("mine")
    with pytest.raises(ShardError, match="_index-val.npy is there"):
        make_shards(source, tmp_path, "val", ImagePreparation(100))
    (tmp_path / "_index-val.npy").unlink()
    (tmp_path / "val-00000.tar").symlink_to("nowhere")
    with pytest.raises(ShardError, match="val-00000.tar is there"):
        make_shards(source, tmp_path, "val", ImagePreparation(100))


def test_a_record_that_is_spoilt(source, tmp_path):
    (tmp_path / ".val.making.json").write_text("[")
    with pytest.raises(ShardError, match=".val.making.json is no record of this program"):
        make_shards(source, tmp_path, "val", ImagePreparation(100))


def test_bad_samples_of_shards_that_were_removed_are_forgotten(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    for i in range(4):
        (tmp_path / "images" / "a" / f"{i}.png").write_bytes(encoded(i) if i else b"x")
    out = tmp_path / "out"
    make_shards(image_folder(tmp_path / "images")["train"], out, "train", max_bad=0.3)
    assert len(BadSamples(4, 1, out / "bad_samples-train.csv")) == 1
    for name in ("_info.json", "_index-train.npy", "train-00000.tar"):
        (out / name).unlink()
    (tmp_path / "images" / "a" / "0.png").write_bytes(encoded(0))
    info = make_shards(image_folder(tmp_path / "images")["train"], out, "train", max_bad=0)
    assert info.num_samples == 4 and not (out / "bad_samples-train.csv").exists()
    shutil.rmtree(out)
    out.mkdir()
    (out / "bad_samples-train.csv").write_text("a diary\n")
    with pytest.raises(ShardError, match="bad_samples-train.csv, line 1: "):
        make_shards(image_folder(tmp_path / "images")["train"], out, "train")


def test_what_a_killed_maker_left_is_removed(source, tmp_path):
    """It can be killed while it writes any of its files; those of others stay."""
    names = ("val-00001.tar", ".val-00001.tar.json", ".val.making.json", "_index-val.npy")
    for name in (*names, "_info.json"):
        (tmp_path / f".{name}.123.part").write_text("half")
    others = {".train-00000.tar.123.part", ".mine.part"}
    for name in others:
        (tmp_path / name).write_text("half")
    make_shards(source, tmp_path, "val", ImagePreparation(100))
    assert {name for name in files(tmp_path) if name.startswith(".")} == others


def test_a_folder_in_which_somebody_makes_shards_is_refused(source, tmp_path):
    with FolderLock(tmp_path, what="maker of shards"):
        with pytest.raises(FolderBusy, match="is in use by another maker of shards"):
            make_shards(source, tmp_path, "val", ImagePreparation(100))
        assert not list(tmp_path.glob("val-*"))
    make_shards(source, tmp_path, "val", ImagePreparation(100))
    assert not [name for name in files(tmp_path) if name.startswith(".")]


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
