"""Data are compared with what they were when shards and index were made."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import make_set
from vit_rpe.data import ImageTransform, Loader, Plan, SampleReader, ShardError, Shards, open_shards
from vit_rpe.data.making import ImagePreparation, digits, make_shards


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_shards(digits()["val"], folder, "val", ImagePreparation(100))
    return folder


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "digits")


def read_all(folder: Path) -> list:
    shards = open_shards(str(folder), "val")
    return SampleReader(shards).read(np.arange(shards.num_samples))


def swap(folder: Path) -> None:
    """Two shards of one size: the lengths agree, the samples do not."""
    first, second = folder / "val-00000.tar", folder / "val-00001.tar"
    size = max(first.stat().st_size, second.stat().st_size)
    contents = [path.read_bytes().ljust(size, b"\0") for path in (second, first)]
    for path, content in zip((first, second), contents, strict=True):
        path.write_bytes(content)
    edit_info(folder, lambda split: split["shard_bytes"].__setitem__(slice(0, 2), [size, size]))


def permute(folder: Path) -> None:
    """Two payloads of one size within a shard change places."""
    path = folder / "val-00000.tar"
    with tarfile.open(path) as tar:
        images = [member for member in tar if member.name.endswith("png")]
    by_size: dict[int, list[tarfile.TarInfo]] = {}
    for member in images:
        by_size.setdefault(member.size, []).append(member)
    one, other = next(group for group in by_size.values() if len(group) > 1)[:2]
    data = bytearray(path.read_bytes())
    a, b = (slice(m.offset_data, m.offset_data + m.size) for m in (one, other))
    data[a], data[b] = data[b], data[a]
    path.write_bytes(data)


def flip_payload(folder: Path) -> None:
    flip(folder / "val-00001.tar", 1600)


def flip_index(folder: Path) -> None:
    flip(folder / "_index-val.npy", -3)


def zero_labels(folder: Path) -> None:
    table = np.load(folder / "_index-val.npy")
    table["label"] = 0
    np.save(folder / "_index-val.npy", table)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def edit_info(folder: Path, change) -> None:
    info = json.loads((folder / "_info.json").read_text())
    change(info["splits"]["val"])
    (folder / "_info.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (swap, r"val-0000[01].tar: the sample '\w+' is not what it was when its index was made"),
        (permute, r"val-00000.tar: the sample '\w+' is not what it was when its index was made"),
        (flip_payload, r"val-00001.tar: the sample '\w+' is not what it was"),
        (flip_index, "_index-val.npy is not the index that _info.json names"),
        (zero_labels, "_index-val.npy is not the index that _info.json names"),
    ],
)
def test_other_data_are_refused(folder, damage, message):
    assert len(read_all(folder)) == 355
    damage(folder)
    with pytest.raises(ShardError, match=message) as error:
        read_all(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_says_it_in_one_line_too(folder, workers):
    permute(folder)
    shards = open_shards(str(folder), "val")
    loader = Loader(shards, Plan(shards.lengths, 50), ImageTransform(8), workers=workers)
    with pytest.raises(ShardError, match="^.*val-00000.tar: the sample .*$") as error:
        list(loader.epoch(0))
    assert "\n" not in str(error.value)


def test_an_index_that_was_removed_is_made_again(folder):
    labels = [sample.label for sample in read_all(folder)]
    (folder / "_index-val.npy").unlink()
    assert [sample.label for sample in read_all(folder)] == labels


def as_before(folder: Path) -> None:
    """Shards as they were made before indices had checksums."""
    table = np.load(folder / "_index-val.npy")
    old = [name for name in table.dtype.names if name != "crc"]
    plain = np.empty(len(table), [(name, table.dtype[name]) for name in old])
    for name in old:
        plain[name] = table[name]
    np.save(folder / "_index-val.npy", plain)
    edit_info(folder, lambda split: split.pop("index_sha256"))


def test_shards_without_checksums_are_read_and_get_some_from_the_maker(folder, made):
    digest = open_shards(str(folder), "val").digest
    as_before(folder)
    assert len(read_all(folder)) == 355
    assert open_shards(str(folder), "val").digest == digest  # the same data
    make_shards(digits()["val"], folder, "val", ImagePreparation(100))
    for name in ("_index-val.npy", "_info.json", "val-00002.tar"):
        assert (folder / name).read_bytes() == (made / name).read_bytes()


def test_the_digest_tells_sets_apart(folder, tmp_path):
    digest = open_shards(str(folder), "val").digest
    assert re.fullmatch("[0-9a-f]{64}", digest)
    other = tmp_path / "other"
    make_shards(digits()["val"], other, "val", ImagePreparation(100, seed=1))
    assert open_shards(str(other), "val").digest != digest
    moved = folder.rename(tmp_path / "moved")
    assert open_shards(str(moved), "val").digest == digest


def test_the_digest_of_shards_of_others(tmp_path):
    first, second = make_set(tmp_path / "a", (3, 4)), make_set(tmp_path / "b", (4, 3))
    assert first.digest != second.digest
    again = make_set(tmp_path / "c", (3, 4))
    assert again.digest == first.digest


def test_a_shard_that_ends_early_is_still_named_as_such(folder):
    shards = open_shards(str(folder), "val")
    unsized = Shards(shards.urls, shards.lengths, shards.table)
    os.truncate(folder / "val-00003.tar", 600)
    found = SampleReader(unsized).read(np.array([354]))
    assert "cut off" in found[0].reason  # pyright: ignore
