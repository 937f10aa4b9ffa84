"""Folders, tables and idx files of others: nothing is lost in silence or waits for ever."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import encoded
from tests.data.videos import video
from vit_rpe.data import BadData, ShardError
from vit_rpe.data.making import (
    Arrays,
    Files,
    ImagePreparation,
    csv_file,
    hold_out,
    idx_folder,
    image_folder,
    make_shards,
    read_idx,
    video_folder,
)


def write_images(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i:03d}.png").write_bytes(encoded(i % 5))
    return folder


# --- folders -----------------------------------------------------------------------------------


def test_files_that_are_passed_over_are_counted(tmp_path):
    write_images(tmp_path, cat=2, dog=2)
    for name in ("cat/a.avif", "cat/deep/b.AVIF", "dog/notes.txt", "dog/README", "list.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    source = image_folder(tmp_path)["train"]
    assert isinstance(source, Files) and len(source) == 4
    assert dict(source.passed_over) == {".avif": 2, ".txt": 2, "no ending": 1}


def test_a_class_without_images_is_refused(tmp_path):
    write_images(tmp_path, cat=2, dog=0)
    with pytest.raises(ValueError, match=r"dog' has no images \(jpg, .*tiff\) in it$"):
        image_folder(tmp_path)
    (tmp_path / "dog" / "a.heic").write_text("x")
    with pytest.raises(ValueError, match=r"dog' has no images .* in it, but 1 x .heic"):
        image_folder(tmp_path)


def test_a_class_may_be_missing_from_the_validation_split(tmp_path):
    write_images(tmp_path / "train", cat=2, dog=2)
    write_images(tmp_path / "val", dog=1)
    assert len(image_folder(tmp_path)["val"]) == 1
    (tmp_path / "val" / "cat").mkdir()
    with pytest.raises(ValueError, match="val/cat' has no images"):
        image_folder(tmp_path)


def test_the_same_for_videos(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.mp4").write_bytes(video(5))
    (tmp_path / "run" / "b.wmv").write_text("x")
    (tmp_path / "run" / "frames").mkdir()
    (tmp_path / "run" / "frames" / "1.png").write_bytes(encoded(1))
    source = video_folder(tmp_path)["train"]
    assert len(source) == 2 and dict(source.passed_over) == {".wmv": 1}  # pyright: ignore
    (tmp_path / "walk").mkdir()
    with pytest.raises(ValueError, match="walk' has no videos"):
        video_folder(tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "zero", "gone", "folder"])
def test_what_is_not_a_file_is_a_bad_sample(tmp_path, kind):
    write_images(tmp_path / "in", cat=3)
    odd = tmp_path / "in" / "cat" / "odd.png"
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        (tmp_path / "empty").mkdir()
        targets = {"zero": "/dev/zero", "gone": "nowhere", "folder": tmp_path / "empty"}
        odd.symlink_to(targets[kind])
    source = image_folder(tmp_path / "in")["train"]
    info = make_shards(source, tmp_path / "out", "train", ImagePreparation(), max_bad=0.3)
    assert info.num_samples == 3
    if len(source) == 4:  # a link to a folder is not taken for an image
        assert "odd.png" in (tmp_path / "out" / "bad_samples-train.csv").read_text()


# --- held-out files ------------------------------------------------------------------------------


def test_a_share_is_held_out_class_by_class(tmp_path):
    whole = image_folder(write_images(tmp_path, cat=120, dog=80, yak=2))
    splits = hold_out(whole, 0.25)
    assert list(splits) == ["train", "val"]
    names = {split: set(part.names) for split, part in splits.items()}
    assert not names["train"] & names["val"]
    assert names["train"] | names["val"] == set(whole["train"].names)  # pyright: ignore
    counts = np.bincount(splits["val"].labels)
    assert abs(counts[0] - 30) < 15 and abs(counts[1] - 20) < 12
    assert counts[2] == 1  # of two, one for each
    assert list(splits["val"].classes) == ["cat", "dog", "yak"]


def test_files_stay_where_they_are_when_others_come(tmp_path):
    before = hold_out(image_folder(write_images(tmp_path, cat=40, dog=30)), 0.2)
    for i in range(200, 260):
        (tmp_path / "cat" / f"{i}.png").write_bytes(encoded(0))
    after = hold_out(image_folder(tmp_path), 0.2)
    assert set(before["val"].names) <= set(after["val"].names)
    assert set(before["train"].names) <= set(after["train"].names)


def test_what_cannot_be_held_out(tmp_path):
    write_images(tmp_path / "train", cat=2)
    write_images(tmp_path / "val", cat=2)
    with pytest.raises(ValueError, match="there are the splits train, val already"):
        hold_out(image_folder(tmp_path), 0.5)
    with pytest.raises(ValueError, match="the split is called val already"):
        hold_out(image_folder(tmp_path / "val", "val"), 0.5)


# --- tables --------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "list.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n", "list.csv has no rows"),
        ("", "list.csv needs the columns path and label, got none"),
        (
            "path,label\na.png," + "x" * 200_000,
            r"list.csv, after line 1: field larger than field limit",
        ),
        ("path,label\na.png,2147483648", r"line 2: a label below 1000000000, got '2147483648'"),
        ("path,label\na.png," + "9" * 9999, r"line 2: a label below 1000000000, got '9999"),
        (
            "path,label\na.png,1\nb.png,cat",
            "line 3: label 'cat' is a name, and '1' in line 2 a num",
        ),
        ("path,label\na.png,1\nb.png,²", "line 3: label '²' is a name"),
        ("path,label\na\0.png,1", "line 2: a path within the folder of the files, got"),
        (b"path,label\n\xff.png,1", "list.csv is not text in UTF-8"),
        ("path,label\n" + "x" * 99_999 + ",1", "line 2: a file ending in"),
        ('path,label\n"a.png,1', "after line 1: unexpected end of data"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        csv_file(table(tmp_path, text))
    assert len(str(error.value)) < 1000


def test_a_byte_order_mark_is_passed_over(tmp_path):
    splits = csv_file(table(tmp_path, b"\xef\xbb\xbfpath,label\na.png,7\nb.png,12\n"))
    assert list(splits["train"].labels) == [7, 12]  # pyright: ignore


def test_a_table_that_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(OSError, match="list.csv is not a regular file"):
        csv_file(tmp_path / "list.csv")


@pytest.mark.parametrize("label", [-1, 10**9])
def test_labels_that_shards_cannot_hold(tmp_path, label):
    source = Arrays(np.zeros((2, 4, 4), np.uint8), np.array([1, label]), [])
    with pytest.raises(ShardError, match=f"labels are from 0 to 999999999, got {label}"):
        make_shards(source, tmp_path, "train")


# --- idx files -----------------------------------------------------------------------------------


def idx(*sides: int) -> bytes:
    return bytes([0, 0, 8, len(sides)]) + struct.pack(f">{len(sides)}I", *sides)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(2, 2) + bytes(4), mtime=0)[:-9], "is damaged: "),
        (b"no gzip", "is damaged: "),
        (
            gzip.compress(idx(2, 2) + bytes(3), mtime=0),
            r"should hold an array \(2, 2\), but has 3 bytes",
        ),
        (gzip.compress(idx(2, 2) + bytes(10**8), mtime=0), r"\(2, 2\), but has more than 4 bytes"),
        (gzip.compress(idx(2**31, 2**31), mtime=0), "claims an array of 4611686018427387904 bytes"),
        (gzip.compress(idx(2)[:6], mtime=0), "is not an idx file of bytes"),
        (gzip.compress(b"", mtime=0), "is not an idx file of bytes"),
    ],
)
def test_idx_files_that_cannot_be_used(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)


def test_idx_files_without_labels(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(1, 2, 2) + bytes(4)))
    with pytest.raises(OSError, match="train-labels-idx1-ubyte.gz"):
        idx_folder(tmp_path)


def test_a_frame_folder_with_a_fifo_is_bad(tmp_path):
    folder = tmp_path / "run" / "frames"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "1.png")
    source = video_folder(tmp_path)["train"]
    with pytest.raises((BadData, OSError), match="not a regular file"):
        source.item(0)
