"""The index of shards: made once, kept, and refused where it does not fit."""

from __future__ import annotations

import os
import re
import tarfile

import numpy as np
import pytest

from tests.data.samples import Evil, bad_of, make_set, sample, write_shard
from vit_rpe.data import (
    ShardError,
    Shards,
    open_shards,
)
from vit_rpe.data.making import ImagePreparation, digits, make_shards
from vit_rpe.data.shards.index import index_shard


def test_a_shard_that_shrank_after_it_was_indexed(tmp_path):
    shards = make_set(tmp_path / "s", (4, 5))
    with tarfile.open(shards.urls[1]) as tar:
        cut = tar.getmember("k0006.png").offset_data + 10
    os.truncate(shards.urls[1], cut)
    found = bad_of(shards)
    assert [key for key, _ in found] == ["k0006", "k0007", "k0008"]
    assert all("cut off: " in reason for _, reason in found)
    listed = Shards(
        shards.urls, shards.lengths, shards.table, sizes=(os.path.getsize(shards.urls[0]), 9)
    )
    with pytest.raises(ShardError, match=f"has {cut} bytes, and 9 when its index was made"):
        bad_of(listed)


def test_an_index_that_is_none_or_of_other_shards(tmp_path):

    make_shards(digits()["val"], tmp_path, "val", ImagePreparation(200))
    info = tmp_path / "_info.json"  # as one of before indices had sums
    info.write_text(re.sub(r'"index_sha256": "\w+"', '"index_sha256": ""', info.read_text()))
    table = tmp_path / "_index-val.npy"
    trap = tmp_path / "trap"

    np.save(table, np.array([Evil(trap)], dtype=object), allow_pickle=True)
    with pytest.raises(ShardError, match="is not an index"):
        open_shards(str(tmp_path), "val")
    assert not trap.exists()
    np.save(table, np.zeros(3))
    with pytest.raises(ShardError, match="has 3 rows for 355 samples"):
        open_shards(str(tmp_path), "val")
    np.save(table, np.zeros(355, [("offset", "<i8"), ("label", "<i4")]))
    with pytest.raises(ShardError, match="is not an index: it has no column 'key'"):
        open_shards(str(tmp_path), "val")
    table.write_bytes(b"")
    with pytest.raises(ShardError, match="is not an index"):
        open_shards(str(tmp_path), "val")


def test_an_index_in_the_cache_that_is_spoilt_is_made_again(tmp_path, cache):
    make_set(tmp_path / "s", (3, 4))
    for spoil in ("garbage", "[9, 9]", "[3, null]", "7", "[" * 99_999):
        for file in cache.glob("index/*.json"):
            file.write_text(spoil)
        assert open_shards(str(tmp_path / "s")).lengths == (3, 4)
    for file in cache.glob("index/*.npy"):
        file.write_bytes(b"")
    assert open_shards(str(tmp_path / "s")).lengths == (3, 4)


def test_shards_are_counted_once(tmp_path, monkeypatch):
    count = 0

    def counted(*args, **options):
        nonlocal count
        count += 1
        return index_shard(*args, **options)

    monkeypatch.setattr("vit_rpe.data.shards.index.index_shard", counted)
    make_set(tmp_path / "s", (3, 4))
    assert count == 2
    open_shards(str(tmp_path / "s"))
    assert count == 2
    write_shard(tmp_path / "s" / "x-train-001.tar", map(sample, range(9)))  # another file
    assert open_shards(str(tmp_path / "s")).lengths == (3, 9) and count == 4
    assert open_shards(str(tmp_path / "s"), workers=2, endings=("png",)).lengths == (3, 9)
