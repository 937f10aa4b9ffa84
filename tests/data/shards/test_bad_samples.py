"""The record of bad samples: counted, limited, read back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.data.samples import sample, write_shard
from vit_rpe.data import (
    BadSample,
    BadSamples,
    ImageTransform,
    Loader,
    Plan,
    ShardError,
    Shards,
    open_shards,
)


def test_bad_samples_are_counted_up_to_the_limit(tmp_path):
    samples = [sample(i) if i % 4 else {**sample(i), "png": b"x"} for i in range(20)]  # 5 bad
    write_shard(tmp_path / "s" / "a-000.tar", samples)
    shards = open_shards(str(tmp_path / "s"))
    plan = Plan(shards.lengths, 4, shuffle=False)
    record = tmp_path / "run" / "bad_samples.csv"
    for workers in (0, 2):
        record.unlink(missing_ok=True)
        bad = BadSamples(20, limit=0.1, path=record)
        loader = Loader(shards, plan, ImageTransform(8), workers=workers, bad=bad)
        with pytest.raises(ShardError) as stop:
            for _ in loader.epoch(0):
                pass
        assert "3 of 20 samples are bad, the limit is 10.00% (2)" in str(stop.value)
        assert "'k0008'" in str(stop.value) and str(record) in str(stop.value)
        with open(record, newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == ["shard", "key", "reason"]
        assert [row[1] for row in rows[1:]] == ["k0000", "k0004", "k0008"]
        assert all(row[0].endswith("a-000.tar") and "not an image" in row[2] for row in rows[1:])


def test_one_bad_sample_in_a_thousand_is_tolerated_by_default():
    bad = [BadSample("s", str(i), "r") for i in range(9)]
    record = BadSamples(2000)
    record.add(bad[:2])
    record.add(bad[:2])  # the next epoch meets them again
    assert len(record) == 2
    with pytest.raises(ShardError, match="3 of 2000 samples are bad, the limit is 0.10%"):
        record.add(bad[2:3])
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        BadSamples(5, limit=2)


def test_the_record_is_read_back(tmp_path):
    path = tmp_path / "bad_samples.csv"
    first = BadSamples(100, 0.5, path)
    first.add([BadSample("s", "k,1", 'a "reason"\nin two lines'), BadSample("s", "k2", "r")])
    second = BadSamples(100, 0.5, path)
    assert second.found == first.found
    second.add([BadSample("s", "k2", "r"), BadSample("t", "k2", "r")])
    assert len(BadSamples(100, 0.5, path)) == 3


def spoilt_set(folder: Path, bad: set[int], total: int = 20) -> Shards:
    samples = [{**sample(i), "png": b"x"} if i in bad else sample(i) for i in range(total)]
    write_shard(folder / "a-000.tar", samples)
    return open_shards(str(folder))


def loader_of(shards: Shards, record: Path, limit: float = 0.1, **place) -> Loader:
    plan = Plan(shards.lengths, 4, shuffle=False)
    bad = BadSamples(shards.num_samples, limit, record)
    return Loader(shards, plan, ImageTransform(8), bad=bad, **place)


def test_the_limit_holds_after_a_restart(tmp_path):
    shards, record = spoilt_set(tmp_path / "s", {0, 4, 8, 12}), tmp_path / "bad.csv"
    message = r"3 of 20 samples are bad, the limit is 10.00% \(2\)"
    with pytest.raises(ShardError, match=message):
        list(loader_of(shards, record).epoch(0))
    for _ in range(3):  # a supervisor starts it again and again
        with pytest.raises(ShardError, match=message):
            loader_of(shards, record)
    assert len(list(loader_of(shards, record, limit=0.2).epoch(0))) == 5


def test_samples_that_were_repaired_are_bad_no_more(tmp_path):
    shards, record = spoilt_set(tmp_path / "s", {0, 4, 8, 12}), tmp_path / "bad.csv"
    with pytest.raises(ShardError):
        list(loader_of(shards, record).epoch(0))
    shards = spoilt_set(tmp_path / "s", {4, 12})
    loader = loader_of(shards, record)
    assert [key for _, key in loader.bad.found] == ["k0004"]  # pyright: ignore
    assert sum(int(batch.valid.sum()) for batch in loader.epoch(0)) == 18
    assert len(BadSamples(20, 0.1, record)) == 2


def test_the_limit_is_that_of_all_ranks_together(tmp_path):
    shards, record = spoilt_set(tmp_path / "s", {0, 2, 4, 6}), tmp_path / "bad.csv"
    ranks = [loader_of(shards, record, rank=rank, world_size=2).epoch(0) for rank in range(2)]
    with pytest.raises(ShardError, match="3 of 20 samples are bad"):
        for batches in zip(*ranks, strict=True):
            assert len(batches) == 2


def test_evaluation_on_ranks_without_a_record_has_one_limit():
    record = BadSamples(20, 0.1)
    record.check(2)
    with pytest.raises(ShardError, match=r"3 of 20 samples are bad, the limit is 10.00% \(2\)"):
        record.check(3)


@pytest.mark.parametrize(
    "content",
    [
        b"shard,key,reason\ns,k\n",
        b"shard,key,reason\n\n",
        b"a diary\nof somebody else\n",
        b'shard,key,reason\ns,k,"' + b"x" * 200_000 + b'"\n',
    ],
)
def test_a_record_that_is_none(tmp_path, content):
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(ShardError, match=r"bad.csv, (after )?line \d: ") as error:
        BadSamples(20, 0.1, tmp_path / "bad.csv")
    assert len(str(error.value)) < 600 and (tmp_path / "bad.csv").read_bytes() == content


def test_a_record_with_any_bytes_is_read_back(tmp_path):
    (tmp_path / "bad.csv").write_bytes(b"shard,key,reason\ns,k\xff,r\n")
    assert len(BadSamples(20, 0.1, tmp_path / "bad.csv")) == 1
