"""Shards that are damaged, ambiguous or hostile are refused."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from tests.data.samples import sample, write_shard
from vit_rpe.data import (
    ShardError,
    open_shards,
)


@pytest.mark.parametrize("cut", [0, 100, 700, 1500, 2500, 5000, -1024, -513])
def test_a_truncated_tar_is_refused(tmp_path, cut):
    path = write_shard(tmp_path / "a-000.tar", map(sample, range(3)))
    end = os.path.getsize(path)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
        end = last.offset_data + 512  # where the end mark starts
    os.truncate(path, cut if cut >= 0 else end + 1024 + cut)
    with pytest.raises(ShardError, match="a-000.tar (is not a whole|has no end mark|is empty)"):
        open_shards(str(tmp_path))


def test_a_damaged_header_is_refused(tmp_path):
    path = write_shard(tmp_path / "a-000.tar", map(sample, range(3)))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        start = tar.getmembers()[2].offset
    data[start : start + 20] = b"?" * 20
    path.write_bytes(data)
    with pytest.raises(ShardError, match=f"no end mark at byte {start}"):
        open_shards(str(tmp_path))


def test_an_empty_shard_is_refused(tmp_path):
    write_shard(tmp_path / "a-000.tar", [])
    with pytest.raises(ShardError, match="a-000.tar is empty: no sample in it"):
        open_shards(str(tmp_path))


def test_duplicate_keys_are_refused(tmp_path):
    write_shard(tmp_path / "a" / "a-000.tar", [sample(1), sample(2), sample(1)])
    with pytest.raises(ShardError, match="two samples with the key 'k0001'"):
        open_shards(str(tmp_path / "a"))
    write_shard(tmp_path / "b" / "a-000.tar", [sample(1), sample(1)])
    with pytest.raises(ShardError, match="two members of one kind for the key 'k0001'"):
        open_shards(str(tmp_path / "b"))


@pytest.mark.parametrize("name", ["../k1", "x/../../k1", "/etc/k1"])
def test_paths_out_of_the_folder_are_refused(tmp_path, name):
    path = tmp_path / "a-000.tar"
    with tarfile.open(path, "w") as tar:
        for ending in ("png", "cls"):
            info = tarfile.TarInfo(f"{name}.{ending}")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    with pytest.raises(ShardError, match=f"a-000.tar has the member '{name}"):
        open_shards(str(tmp_path))


def test_compressed_shards_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a-000.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x.png"))
    with pytest.raises(ShardError, match="not a whole, uncompressed tar file"):
        open_shards(str(tmp_path))


def test_links_are_passed_over(tmp_path):
    path = write_shard(tmp_path / "a-000.tar", map(sample, range(2)))
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("k0009.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert open_shards(str(tmp_path)).num_samples == 2


def header(name: str, size: bytes) -> bytes:
    """A tar header whose size stands there as these 12 bytes."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(**records: str) -> bytes:
    info = tarfile.TarInfo("k1.png")
    info.pax_headers = {name.replace("_", "."): value for name, value in records.items()}
    return info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        header("k1.png", b"\x80" + b"\xff" * 11),
        header("k1.png", b"\x80\0\0\0" + b"\x7f" + b"\xff" * 7),
        header("k1.png", b"\xff" * 11 + b"\0"),
        header("k1.png", b"\xff" * 10 + b"\xfe\0"),
        pax(size="9" * 30),
        pax(size="-512"),
        pax(GNU_sparse_map="x,y"),
        pax(GNU_sparse_major="1", GNU_sparse_minor="0"),
        pax(GNU_sparse_size="9" * 30),
    ],
    ids=range(9),
)
def test_odd_headers_are_refused(tmp_path, content):
    (tmp_path / "a-000.tar").write_bytes(content + bytes(4096))
    with pytest.raises(ShardError, match="a-000.tar ") as error:
        open_shards(str(tmp_path))
    assert len(str(error.value)) < 600


def test_a_sparse_member_is_refused(tmp_path):
    """Its bytes are not in one piece, so an offset and a size would read others."""
    content = pax(GNU_sparse_size="600", GNU_sparse_map="0,10,500,10")
    (tmp_path / "a-000.tar").write_bytes(content + bytes(4096))
    with pytest.raises(ShardError, match=r"'k1.png', stored in pieces \(sparse\)"):
        open_shards(str(tmp_path))


def test_one_long_name_does_not_blow_up_the_index(tmp_path):
    samples = [sample(i) for i in range(3)]
    samples[1]["__key__"] = "k" * 1_000_000
    write_shard(tmp_path / "a-000.tar", samples)
    with pytest.raises(ShardError, match="a name of 1000004 characters, at most 1000") as error:
        open_shards(str(tmp_path))
    assert len(str(error.value)) < 600
