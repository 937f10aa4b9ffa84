"""Images to shards and back: the same bytes and labels, every time, also after a stop."""

from __future__ import annotations

import csv
import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from PIL import Image

from tests.data.samples import encoded, pixels
from vit_rpe.data import ImageDecoder, SampleReader, ShardError, open_shards, read_info, verify
from vit_rpe.data.making import (
    Arrays,
    ImagePreparation,
    csv_file,
    digits,
    idx_folder,
    image_folder,
    make_shards,
    torchvision_dataset,
)

COUNTS = {"train": {"cat": 5, "dog": 9, "yak": 3}, "val": {"cat": 2, "yak": 4}}


def write_folder(root: Path) -> dict[str, list[tuple[int, bytes]]]:
    """ImageNet's layout, with names that tar and webdataset would stumble over."""
    wanted: dict[str, list[tuple[int, bytes]]] = {}
    i = 0
    for split, classes in COUNTS.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True)
            for n in range(count):
                i += 1
                ending, kind = [(".JPEG", "JPEG"), (".png", "PNG"), (".jpg", "JPEG")][i % 3]
                data = encoded(i, kind, height=8 + i, width=30 - i)
                (root / split / name / f"ein Bild.{n} ü{'x' * 80}{ending}").write_bytes(data)
                wanted.setdefault(split, []).append((sorted(COUNTS["train"]).index(name), data))
    return wanted


def read_back(folder: Path, split: str) -> list[tuple[int, bytes]]:
    shards = open_shards(str(folder), split)
    return [(s.label, s.data) for s in SampleReader(shards).read(np.arange(shards.num_samples))]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def images(tmp_path):
    return write_folder(tmp_path / "images")


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


def test_digits_are_stratified_and_come_back(tmp_path):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    found = []
    for split, source in digits().items():
        make_shards(source, tmp_path, split, ImagePreparation(samples_per_shard=300))
        part = read_back(tmp_path, split)
        counts = np.bincount([label for label, _ in part])
        whole = np.bincount(bunch.target)
        share = 0.8 if split == "train" else 0.2
        assert (abs(counts - share * whole) <= 1).all()
        found += part
    images = [(np.asarray(ImageDecoder("L")(data), float) * 16 / 255).round() for _, data in found]
    pairs = {(label, image.tobytes()) for (label, _), image in zip(found, images, strict=True)}
    wanted = {(label, im.tobytes()) for label, im in zip(bunch.target, bunch.images, strict=True)}
    assert pairs == wanted and len(found) == 1797


def test_fashion_mnist_comes_back(tmp_path):
    data = os.environ.get("VIT_RPE_DATA")
    folder = Path(data or "") / "fashion-mnist"
    if not data or not folder.is_dir():
        pytest.skip("VIT_RPE_DATA names no folder with fashion-mnist in it")
    source = idx_folder(folder)["test"]
    assert isinstance(source, Arrays) and len(source) == 10_000
    part = Arrays(source.images[:700], source.labels[:700], source.classes)
    make_shards(part, tmp_path, "test", ImagePreparation(samples_per_shard=256, seed=None))
    for i, (label, data) in enumerate(read_back(tmp_path, "test")):
        assert label == source.labels[i]
        np.testing.assert_array_equal(ImageDecoder("L")(data), source.images[i])


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


def test_idx_files(tmp_path):
    images = pixels(1, 7, 5)[None, :, :, 0].repeat(3, 0)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([2, 0, 1], np.uint8))
    (split,) = idx_folder(tmp_path).items()
    assert split[0] == "test" and [split[1].item(i).label for i in range(3)] == [2, 0, 1]
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([2, 0], np.uint8))
    with pytest.raises(ValueError, match="has 3 images and 2 labels"):
        idx_folder(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03\0"))
    with pytest.raises((ValueError, struct.error)):
        idx_folder(tmp_path)


def test_csv_with_names_splits_and_bad_rows(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.png").write_bytes(encoded(i))
    table = tmp_path / "list.csv"
    table.write_text("path,label,split\na/0.png,yak,train\na/1.png,cat,val\na/2.png,cat,train\n")
    splits = csv_file(table)
    assert list(splits) == ["train", "val"] and list(splits["train"].classes) == ["cat", "yak"]
    assert [splits["train"].item(i)[1] for i in range(2)] == [1, 0]
    assert splits["val"].item(0).data == encoded(1)
    for text, message in (
        (
            "path,label\n../x.png,1\n",
            "line 2: a path within the folder of the files, got '../x.png'",
        ),
        ("path,label\n/etc/x.png,1\n", "line 2: a path within"),
        ("path,label\na/0.png,\n", "line 2: path and label must be given"),
        ("path,label\na/0.eps,1\n", "line 2: a file ending in jpg"),
        ("file,label\na/0.png,1\n", "columns path and label, got"),
    ):
        table.write_text(text)
        with pytest.raises(ValueError, match=message):
            csv_file(table)


def test_torchvision_dataset(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 5), ("t10k", 3)):
        head = struct.pack(">4I", 0x803, count, 28, 28)
        body = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + body)
        labels = struct.pack(">2I", 0x801, count) + bytes(range(count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    splits = torchvision_dataset("MNIST", tmp_path)
    info = make_shards(splits["test"], tmp_path / "out", "test", ImagePreparation(seed=None))
    assert info.num_samples == 3 and len(splits["train"]) == 5
    assert [label for label, _ in read_back(tmp_path / "out", "test")] == [0, 1, 2]
    first = ImageDecoder("L")(read_back(tmp_path / "out", "test")[0][1])
    np.testing.assert_array_equal(
        first, np.arange(784, dtype=np.uint32).astype(np.uint8).reshape(28, 28)
    )
    with pytest.raises(ValueError, match="torchvision.datasets has no 'MNISTT'"):
        torchvision_dataset("MNISTT", tmp_path)


def test_folders_that_cannot_be_used(images, tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        image_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="has no folders, one for each class"):
        image_folder(tmp_path / "images" / "val" / "cat")
    (tmp_path / "images" / "val" / "gnu").mkdir()
    with pytest.raises(ValueError, match="has the class 'gnu', which train has not"):
        image_folder(tmp_path / "images")
    with pytest.raises(ShardError, match="no samples for the split 'train'"):
        make_shards(Arrays(np.empty((0, 2, 2), np.uint8), np.empty(0), ()), tmp_path, "train")
    with pytest.raises(ValueError, match="letters, digits and _, got '../x'"):
        make_shards(digits()["val"], tmp_path, "../x")


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
