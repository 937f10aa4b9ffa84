"""Folders of shards: `_info.json`, splits, patterns and lists."""

from __future__ import annotations

import json

import numpy as np
import pytest
import webdataset as wds

from tests.data.samples import INFO, encoded, labels_of, make_set, pixels, sample, write_shard
from vit_rpe.data import (
    SampleReader,
    ShardError,
    open_shards,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 6}, "num_samples 6, but its shard_lengths sum to 5"),
        ({"num_samples": 6, "shard_lengths": [6]}, "says 6 samples for a-000.tar, which has 5"),
        ({"filenames": ["a-000.tar", "b.tar"]}, "2 filenames and 1 shard_lengths"),
        ({"filenames": ["gone.tar"]}, "gone.tar cannot be read"),
        ({"filenames": ["pipe:touch x"]}, "a name of a file in its folder was expected"),
        ({"filenames": ["../a-000.tar"]}, r"names '\.\./a-000.tar'; a name of a file in its"),
        ({"filenames": ["/tmp/a-000.tar"]}, "a name of a file in its folder"),
        ({"filenames": ["http://127.0.0.1/a.tar"]}, "not a command, an address or a path out"),
        ({"filenames": ["reference://x::file:///a.json"]}, "a name of a file in its folder"),
        ({"filenames": ["a\0.tar"]}, "a name of a file in its folder"),
        ({"name": "../../train"}, "names '_index-../../train.npy'; a name of a file in its"),
        ({"num_samples": 1e999}, "not in timm's layout: cannot convert float infinity"),
        ({"shard_lengths": [10**4000]}, "shard_lengths sum to an integer of|sum to 1000"),
        ({"sha256": ["1", "2"]}, "1 filenames, but 2 sizes or sums"),
        ({"shard_lengths": "five"}, "not in timm's layout"),
        ({"num_samples": None}, "not in timm's layout"),
    ],
)
def test_an_info_that_disagrees_with_the_shards(tmp_path, change, message):
    write_shard(tmp_path / "a-000.tar", map(sample, range(5)))
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": {**INFO, **change}}}))
    with pytest.raises(ShardError, match=message):
        open_shards(str(tmp_path), "train")


@pytest.mark.parametrize("text", ["{", "[]", '{"splits": 3}', "{}", "[" * 99_999])
def test_an_info_that_is_none(tmp_path, text):
    (tmp_path / "_info.json").write_text(text)
    with pytest.raises(ShardError, match="_info.json is not in timm's layout"):
        open_shards(str(tmp_path), "train")


def test_shards_of_plain_webdataset(tmp_path):
    """Encoded by ShardWriter itself, with other members beside, and no `_info.json`."""
    pattern = str(tmp_path / "imagenet-train-%04d.tar")
    with wds.ShardWriter(pattern, maxcount=4, verbose=0) as writer:  # pyright: ignore
        for i in range(10):
            meta = {"name": f"sample {i}"}
            writer.write({"__key__": f"a/b{i}", "jpg": pixels(i), "cls": i, "json": meta})
    shards = open_shards(str(tmp_path), "train")
    assert shards.lengths == (4, 4, 2) and labels_of(shards) == list(range(10))
    plain = wds.WebDataset(list(shards.urls), shardshuffle=False)  # pyright: ignore
    for theirs, ours in zip(plain, SampleReader(shards).read(np.arange(10)), strict=True):
        assert (ours.data, ours.key) == (theirs["jpg"], theirs["__key__"])  # pyright: ignore


def test_timms_layout(tmp_path):
    """`_info.json` of timm's fields alone, shards in folders, JPEGs called jpeg and .JPEG."""
    for number, length in enumerate((3, 5)):
        write_shard(
            tmp_path / "train" / f"{number}.tar",
            [
                {
                    "__key__": f"{number}_{i}",
                    ["jpeg", "JPEG"][number]: encoded(i, "JPEG"),
                    "cls": b"7 ",
                }
                for i in range(length)
            ],
        )
    names = ["train/0.tar", "train/1.tar"]
    split = {"name": "train", "num_samples": 8, "filenames": names, "shard_lengths": [3, 5]}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": split}}))
    shards = open_shards(str(tmp_path), "train")
    assert shards.lengths == (3, 5) and labels_of(shards) == [7] * 8
    with pytest.raises(ShardError, match=r"no split 'val' at .*; there are \['train'\]"):
        open_shards(str(tmp_path), "val")


def test_splits_are_told_by_names(tmp_path):
    for name, label in (("x-train-00", 1), ("x-validation-00", 2), ("x-strained-00", 3)):
        write_shard(tmp_path / f"{name}.tar", [sample(0, label)])
    assert labels_of(open_shards(str(tmp_path), "train")) == [1]
    assert labels_of(open_shards(str(tmp_path), "validation")) == [2]
    assert len(labels_of(open_shards(str(tmp_path)))) == 3
    with pytest.raises(
        ShardError, match="no shard at .* has the split 'test' in its name; there are"
    ):
        open_shards(str(tmp_path), "test")
    with pytest.raises(ShardError, match="no shards"):
        open_shards(str(tmp_path / "none"))


def test_patterns_and_lists(tmp_path):
    make_set(tmp_path, (3, 4, 2))
    base = str(tmp_path / "x-train-")
    assert open_shards(f"{base}{{000..001}}.tar").lengths == (3, 4)
    assert open_shards(f"{base}*.tar").lengths == (3, 4, 2)
    assert open_shards([f"{base}002.tar", f"{base}000.tar"]).lengths == (2, 3)
    with pytest.raises(ShardError, match="x-train-003.tar cannot be read: No such file"):
        open_shards(f"{base}{{000..007}}.tar")
