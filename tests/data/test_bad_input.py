"""What is wrong with data is named and counted, or refused; nothing in it is ever run."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from tests.data.samples import encoded, make_set, sample, write_shard
from vit_rpe.data import (
    BadSample,
    BadSamples,
    ImageDecoder,
    Images,
    ImageTransform,
    Loader,
    Plan,
    ShardError,
    Shards,
    open_shards,
)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def bad_of(shards: Shards, workers: int = 0, **options) -> list[tuple[str, str]]:
    """(key, reason) of the bad samples of an epoch, whose good samples must all come."""
    plan = Plan(shards.lengths, 3, drop_last=False)
    bad = BadSamples(shards.num_samples, limit=1)
    loader = Loader(shards, plan, ImageTransform(8), workers=workers, bad=bad, **options)
    good = sum(int(batch.valid.sum()) for batch in loader.epoch(0))
    assert good + len(bad) == shards.num_samples
    return sorted((key, found.reason) for (_, key), found in bad.found.items())


def with_bad(tmp_path, bad: dict, total: int = 7) -> Shards:
    """A set in which sample k0002 is another."""
    samples = [sample(i) for i in range(total)]
    samples[2] = {"__key__": "k0002", "png": encoded(2), "cls": b"2", **bad}
    samples[2] = {name: value for name, value in samples[2].items() if value is not None}
    write_shard(tmp_path / "s" / "a-000.tar", samples)
    return open_shards(str(tmp_path / "s"))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"png": None, "jpg": encoded(2, "JPEG", height=90, width=80)[:900]}, "truncated"),
        ({"png": encoded(2)[:70]}, "OSError|SyntaxError|truncated|broken"),
        ({"png": b"not an image"}, "not an image in one of JPEG, PNG"),
        ({"png": b""}, "not an image"),
        ({"png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"}, "not an image in one of"),
        ({"png": bomb(20_000, 20_000)}, "decompression bomb"),
        ({"png": bomb(11_000, 9_000)}, "decompression bomb: 11000 x 9000"),
        ({"png": None}, "missing member: no image or video"),
        ({"cls": None}, "missing member: no label"),
        ({"cls": b"cat"}, "wrong label: not a number"),
        ({"cls": b"-1"}, "wrong label: not a number"),
        ({"cls": b"9" * 40}, "wrong label: not a number"),
        ({"cls": b"10"}, "wrong label: 10 is not below 10"),
        ({"cls": None, "png": None, "pkl": b"x"}, "missing member: no image or video"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bad_sample_is_named_and_the_others_come(tmp_path, bad, reason):
    ((key, found),) = bad_of(with_bad(tmp_path, bad), num_classes=10)
    assert key == "k0002" and re.search(reason, found)


def test_pixels_are_limited(tmp_path):
    shards = with_bad(tmp_path, {"png": encoded(2, height=40, width=50)})
    assert bad_of(shards) == []
    assert bad_of(shards, modality=Images(ImageDecoder(max_pixels=1999))) == [
        ("k0002", "decompression bomb: 50 x 40 > 1999 pixels")
    ]


@pytest.mark.parametrize("ending", ["pkl", "pyd", "pickle", "pth"])
def test_no_member_is_unpickled(tmp_path, ending):
    trap = tmp_path / "trap"
    data = pickle.dumps(Evil(trap))
    assert (
        bad_of(with_bad(tmp_path, {ending: data}), workers=1) == []
    )  # beside an image: not opened
    ((key, _),) = bad_of(with_bad(tmp_path, {ending: data, "png": None}))
    ((key, reason),) = bad_of(with_bad(tmp_path, {"png": data}))
    assert key == "k0002" and "not an image" in reason and not trap.exists()
    pickle.loads(data)
    assert trap.exists()  # the trap works


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


def test_memory_that_one_sample_asks_too_much_of(tmp_path):
    def greedy(data: bytes):
        if data == encoded(2):
            raise MemoryError
        return ImageDecoder()(data)

    found = bad_of(make_set(tmp_path / "s", (7,)), modality=Images(greedy))
    assert found == [("k0002", "it needs more memory than there is")]


# --- shards that are refused --------------------------------------------------------------------


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


INFO = {"name": "train", "num_samples": 5, "filenames": ["a-000.tar"], "shard_lengths": [5]}


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


def test_an_index_that_is_none_or_of_other_shards(tmp_path):
    from vit_rpe.data.making import ImagePreparation, digits, make_shards

    make_shards(digits()["val"], tmp_path, "val", ImagePreparation(200))
    info = tmp_path / "_info.json"  # as one of before indices had sums
    info.write_text(re.sub(r'"index_sha256": "\w+"', '"index_sha256": ""', info.read_text()))
    table = tmp_path / "_index-val.npy"
    trap = tmp_path / "trap"
    import numpy as np

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


@pytest.mark.parametrize(
    "address",
    [
        "reference://?fo=file:///x.json",
        "simplecache::http://127.0.0.1/x",
        "local://x",
        "shell://x",
        "zip://x::file:///tmp/a.zip",
        "github://a:b@main/",
    ],
)
def test_addresses_are_of_known_kinds(address):
    for each in (address, [f"{address}/a.tar"]):
        with pytest.raises(ShardError, match="is no address that shards are read from"):
            open_shards(each)


@pytest.mark.parametrize("name", ["_info.json", "a-000.tar", "_index-train.npy"])
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_what_is_not_a_file_is_refused(tmp_path, name, kind):
    if name != "a-000.tar":
        write_shard(tmp_path / "a-000.tar", map(sample, range(5)))
    if name != "_info.json":
        (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": INFO}}))
    if kind == "fifo":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "zero" else tmp_path)
    with pytest.raises(ShardError, match=f"{name}.*not a regular file|{name} is not an index"):
        open_shards(str(tmp_path), "train")


def test_a_nul_in_an_address():
    for address in ("data/\0digits", ["a\0.tar"], "data/\ud800"):
        with pytest.raises(ShardError, match="is no address: it has a NUL"):
            open_shards(address, "val")
