"""CSV files as sources."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import encoded
from vit_rpe.data import (
    ShardError,
)
from vit_rpe.data.making import (
    Arrays,
    csv_file,
    make_shards,
)


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
