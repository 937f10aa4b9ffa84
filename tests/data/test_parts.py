"""A validation part of a split: stable, disjoint and complete, whoever reads it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import encoded, make_set, sample, write_images, write_shard
from vit_rpe.data import (
    ImageTransform,
    Loader,
    Plan,
    Sample,
    SampleReader,
    ShardError,
    Shards,
    open_shards,
    split_by_key,
)
from vit_rpe.data.making import hold_out, image_folder, make_shards
from vit_rpe.data.parts import key_hash

LENGTHS = (7, 1, 31, 4, 57)  # 100 samples


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keys(shards: Shards) -> list[str]:
    found = SampleReader(shards).read(np.arange(shards.num_samples))
    return [each.key for each in found]


def test_the_hash_never_changes():
    """Another value would train a resumed run on what it was evaluated with."""
    pinned = {
        b"k0000": 0.8914227755709779,
        b"00000017_ant": 0.20085807713832401,
        "é".encode(): 0.7520416876058763,
        b"": 0.4475218474442796,
    }
    assert {key: key_hash(key) for key in pinned} == pinned


def test_clips_of_one_video_have_one_hash():
    assert key_hash(b"a-clip000") == key_hash(b"a-clip017") == key_hash(b"a")
    assert key_hash(b"a-clip") != key_hash(b"a") and key_hash(b"b-clip000") != key_hash(b"a")


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.97])
def test_the_hash_is_even(fraction):
    held = [key_hash(f"{i:08d}_x".encode()) < fraction for i in range(20_000)]
    assert np.mean(held) == pytest.approx(fraction, abs=0.01)


def test_parts_are_disjoint_complete_and_in_order(tmp_path):
    whole = make_set(tmp_path / "set", LENGTHS)
    train, val = split_by_key(whole, 0.3)
    ours, theirs = keys(train), keys(val)
    assert 10 < len(theirs) < 50 and not set(ours) & set(theirs)
    assert sorted(ours + theirs) == keys(whole)
    assert theirs == [key for key in keys(whole) if key_hash(key.encode()) < 0.3]
    assert train.urls == whole.urls and len(train.lengths) == len(LENGTHS)
    assert np.add(train.lengths, val.lengths).tolist() == list(LENGTHS)


def test_samples_are_their_own_and_know_their_shard(tmp_path):
    whole = make_set(tmp_path / "set", LENGTHS)
    _, val = split_by_key(whole, 0.3)
    for each in SampleReader(val).read(np.arange(val.num_samples)):
        assert isinstance(each, Sample)
        number = int(each.key[1:])
        assert each.data == encoded(number) and each.label == number % 10
        shard = np.searchsorted(np.cumsum(LENGTHS), number, side="right")
        assert each.shard == whole.urls[shard]
        assert val.find(each.shard, each.key)
    assert not val.find(whole.urls[0], next(k for k in keys(whole) if k not in keys(val)))


def test_the_parts_do_not_depend_on_the_number_of_shards(tmp_path):
    few, many = (make_set(tmp_path / name, n) for name, n in (("few", (100,)), ("many", LENGTHS)))
    assert keys(split_by_key(few, 0.2)[1]) == keys(split_by_key(many, 0.2)[1])


def test_a_larger_part_holds_the_smaller_one(tmp_path):
    whole = make_set(tmp_path / "set", LENGTHS)
    small, large = (keys(split_by_key(whole, fraction)[1]) for fraction in (0.1, 0.25))
    assert set(small) < set(large)


def test_the_table_is_made_once_and_again_for_other_shards(tmp_path, cache):
    whole = make_set(tmp_path / "set", LENGTHS)
    train, val = split_by_key(whole, 0.3)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("part-*.npy")}
    assert len(before) == 2
    again = split_by_key(whole, 0.3)
    assert again == (train, val) and pickle.loads(pickle.dumps(val)) == val
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("part-*.npy")} == before
    other = split_by_key(make_set(tmp_path / "other", (100,)), 0.3)
    assert other[0].table != train.table
    assert train.digest != whole.digest != val.digest


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_and_worker_keeps_to_its_part(tmp_path, workers, world):
    whole = make_set(tmp_path / "set", LENGTHS)
    train, val = split_by_key(whole, 0.3)
    held = keys(val)
    seen = read(val, world, workers, Plan(val.lengths, 6, shuffle=False, drop_last=False))
    assert sorted(seen) == held
    trained = read(train, world, workers, Plan(train.lengths, 6, drop_last=False, window=2))
    assert sorted(trained) == keys(train)


def read(shards: Shards, world: int, workers: int, plan: Plan) -> list[str]:
    loaders = [
        Loader(shards, plan, ImageTransform(8), rank=r, world_size=world, workers=workers)
        for r in range(world)
    ]
    batches = [batch for loader in loaders for batch in loader.epoch(0)]
    return [key for batch in batches for key in batch.keys if key]


def test_what_make_shards_held_out_says_nothing_about_the_part(tmp_path):
    """With one hash for both, a training split would have no sample below the fraction left."""
    split = hold_out(image_folder(write_images(tmp_path / "files", cat=60, dog=50)), 0.3)
    make_shards(split["train"], tmp_path / "shards", "train")
    train, val = split_by_key(open_shards(str(tmp_path / "shards"), "train"), 0.3)
    assert 10 < val.num_samples < 40 < train.num_samples


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_no_fraction(tmp_path, fraction):
    with pytest.raises(ValueError, match="a fraction between 0 and 1, got"):
        split_by_key(make_set(tmp_path, (3,)), fraction)


@pytest.mark.parametrize(
    ("fraction", "text"), [(1e-6, "none of the 3"), (0.999999, "all of the 3")]
)
def test_an_empty_part_is_refused(tmp_path, fraction, text):
    write_shard(tmp_path / "x-000.tar", map(sample, range(3)))
    with pytest.raises(ShardError, match=text):
        split_by_key(open_shards(str(tmp_path)), fraction)
