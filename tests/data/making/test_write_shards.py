"""Making shards: resumable, the same bytes every time, nothing overwritten."""

from __future__ import annotations

import csv
import json
import os
import shutil

import pytest
import webdataset as wds
from PIL import Image

from tests.data.samples import encoded, files, read_back, sample, write_shard
from vit_rpe.data import (
    BadSamples,
    FolderBusy,
    FolderLock,
    ImageDecoder,
    ShardError,
    open_shards,
    read_info,
    verify,
)
from vit_rpe.data.making import (
    ImagePreparation,
    digits,
    image_folder,
    make_shards,
)


def test_folder_to_shards_and_back(images, tmp_path):
    for split, source in image_folder(tmp_path / "images").items():
        info = make_shards(source, tmp_path / "out", split, ImagePreparation(samples_per_shard=4))
        assert info.shard_lengths == ([4, 4, 4, 4, 1] if split == "train" else [4, 2])
        found = read_back(tmp_path / "out", split)
        assert sorted(found) == sorted(images[split])
        if split == "train":
            assert found != images[split]  # shuffled
        shards = open_shards(str(tmp_path / "out"), split)
        assert verify(shards, info) == [] and shards.classes == ("cat", "dog", "yak")
    assert not [name for name in files(tmp_path / "out") if name.startswith(".")]


def test_timm_and_webdataset_read_what_was_made(images, tmp_path):
    from timm.data import create_dataset  # pyright: ignore[reportPrivateImportUsage]

    source = image_folder(tmp_path / "images")["train"]
    make_shards(source, tmp_path / "out", "train", ImagePreparation(samples_per_shard=4))
    dataset = create_dataset("wds/", root=str(tmp_path / "out"), split="train")
    labels = [label for _, label in dataset]
    assert sorted(labels) == sorted(label for label, _ in images["train"])
    urls = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    plain = wds.WebDataset(urls, shardshuffle=False)  # pyright: ignore
    assert [int(sample["cls"]) for sample in plain] == labels


def test_order_can_be_kept(images, tmp_path):
    source = image_folder(tmp_path / "images")["train"]
    make_shards(source, tmp_path / "out", "train", ImagePreparation(samples_per_shard=5, seed=None))
    assert read_back(tmp_path / "out", "train") == images["train"]


def test_re_encoded_at_a_size(images, tmp_path):
    source = image_folder(tmp_path / "images")["val"]
    make_shards(source, tmp_path / "out", "val", ImagePreparation(size=6, quality=80, seed=None))
    for (label, data), (wanted, original) in zip(
        read_back(tmp_path / "out", "val"), images["val"], strict=True
    ):
        new, old = ImageDecoder()(data), ImageDecoder()(original)
        assert label == wanted and min(new.size) == 6 and data[:2] == b"\xff\xd8"
        assert max(new.size) == pytest.approx(6 * max(old.size) / min(old.size), abs=1)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 7, 16])
def test_a_resumed_maker_equals_one_that_was_not_stopped(images, tmp_path, monkeypatch, after):
    source = image_folder(tmp_path / "images")["train"]
    (tmp_path / "images" / "train" / "dog" / "bad.jpg").write_bytes(b"no image")
    source = image_folder(tmp_path / "images")["train"]
    options = {"preparation": ImagePreparation(samples_per_shard=4), "max_bad": 0.1}
    make_shards(source, tmp_path / "whole", "train", **options)
    count, prepare = 0, ImagePreparation.prepare

    def stops(*args):
        nonlocal count
        count += 1
        if count > after:
            raise Stopped
        return prepare(*args)

    monkeypatch.setattr(ImagePreparation, "prepare", stops)
    with pytest.raises(Stopped):
        make_shards(source, tmp_path / "out", "train", **options)
    assert not (tmp_path / "out" / "_info.json").exists()
    monkeypatch.setattr(ImagePreparation, "prepare", prepare)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert len(written) == after // 4
    make_shards(source, tmp_path / "out", "train", **options)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())  # kept
    assert b"bad" in files(tmp_path / "out")["bad_samples-train.csv"]
    make_shards(source, tmp_path / "out", "train", **options)  # and once more: nothing changes
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_workers_do_not_change_a_byte(tmp_path):
    source = digits()["val"]
    for workers in (1, 3):
        make_shards(source, tmp_path / str(workers), "val", ImagePreparation(50), workers=workers)
    assert files(tmp_path / "1") == files(tmp_path / "3")


def test_a_damaged_shard_is_made_again(images, tmp_path):
    source = image_folder(tmp_path / "images")["train"]
    make_shards(source, tmp_path / "out", "train", ImagePreparation(samples_per_shard=4))
    before = files(tmp_path / "out")
    shard = tmp_path / "out" / "train-00002.tar"
    os.truncate(shard, 3000)
    with pytest.raises(ShardError, match="train-00002.tar has not the SHA-256 sum"):
        info = read_info(str(tmp_path / "out"))
        assert info is not None
        verify(open_shards(str(tmp_path / "out"), "train"), info.splits["train"])
    make_shards(source, tmp_path / "out", "train", ImagePreparation(samples_per_shard=4))
    assert files(tmp_path / "out") == before


def test_other_shards_are_never_written_over(images, tmp_path):
    splits = image_folder(tmp_path / "images")
    make_shards(splits["train"], tmp_path / "out", "train", ImagePreparation(samples_per_shard=4))
    with pytest.raises(ShardError, match="samples_per_shard 4, now it is 5: remove that split or"):
        make_shards(
            splits["train"], tmp_path / "out", "train", ImagePreparation(samples_per_shard=5)
        )
    with pytest.raises(ShardError, match="'train' with source"):
        make_shards(splits["val"], tmp_path / "out", "train", ImagePreparation(samples_per_shard=4))
    with pytest.raises(ShardError, match="other classes than those of the split 'val'"):
        make_shards(digits()["val"], tmp_path / "out", "val")


def test_too_many_bad_images_stop_the_maker(images, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / "val" / "cat" / name).write_bytes(encoded(0)[:60])
    source = image_folder(tmp_path / "images")["val"]
    with pytest.raises(ShardError, match="2 of 8 samples are bad, the limit is 20.00%"):
        make_shards(source, tmp_path / "out", "val", max_bad=0.2)
    with open(tmp_path / "out" / "bad_samples-val.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["shard", "key", "reason"] and len(rows) == 3
    assert {row[0] for row in rows[1:]} == {"val-00000.tar"} and "a" in "".join(r[1] for r in rows)
    info = make_shards(source, tmp_path / "out", "val", max_bad=0.3)
    assert info.num_samples == 6 and sorted(read_back(tmp_path / "out", "val")) == sorted(
        images["val"]
    )


def test_info_is_timms(images, tmp_path):
    source = image_folder(tmp_path / "images")["val"]
    make_shards(source, tmp_path / "out", "val", ImagePreparation(samples_per_shard=4))
    split = json.loads((tmp_path / "out" / "_info.json").read_text())["splits"]["val"]
    assert split["name"] == "val" and split["num_samples"] == 6
    assert split["filenames"] == ["val-00000.tar", "val-00001.tar"]
    assert split["shard_lengths"] == [4, 2]
    sizes = [(tmp_path / "out" / name).stat().st_size for name in split["filenames"]]
    assert split["shard_bytes"] == sizes
    assert Image.open(
        tmp_path / "images" / "val" / "cat" / os.listdir(tmp_path / "images" / "val" / "cat")[0]
    )


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
