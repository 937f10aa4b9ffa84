"""Batches: good samples, bad samples, padding; the same with any number of workers."""

from __future__ import annotations

import pickle
import re
import struct
import zlib

import pytest
import torch

from tests.data.samples import Evil, bad_of, encoded, make_set, sample, write_shard
from tests.data.video_samples import RICH, archive, clip_sample
from vit_rpe.data import (
    ClipSampler,
    ClipTransform,
    ImageDecoder,
    Images,
    ImageTransform,
    Loader,
    Plan,
    ShardError,
    Shards,
    Videos,
    open_shards,
)
from vit_rpe.extras import MissingExtra


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


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


def test_memory_that_one_sample_asks_too_much_of(tmp_path):
    def greedy(data: bytes):
        if data == encoded(2):
            raise MemoryError
        return ImageDecoder()(data)

    found = bad_of(make_set(tmp_path / "s", (7,)), modality=Images(greedy))
    assert found == [("k0002", "it needs more memory than there is")]


def test_short_and_broken_videos_are_named_and_counted(tmp_path):
    samples = [clip_sample(i) for i in range(6)]
    samples[2] = clip_sample(2, count=3)
    samples[4]["zip"] = archive(4)[:300]
    write_shard(tmp_path / "x-train-000.tar", samples)
    shards = open_shards(str(tmp_path), endings=("mp4", "zip"))
    transform = ClipTransform(8, ClipSampler(4), training=True)
    plan = Plan(shards.lengths, 6, shuffle=False)
    loader = Loader(shards, plan, transform, modality=Videos())
    with pytest.raises(ShardError, match="2 of 6 samples are bad"):
        list(loader.epoch(0))
    assert loader.bad is not None
    reasons = {bad.key: bad.reason for bad in loader.bad.found.values()}
    assert reasons["k0002"] == "too short: 3 frames, a clip needs 4"
    assert reasons["k0004"].startswith("BadZipFile")


def test_batches_are_the_same_with_any_number_of_workers(tmp_path):
    write_shard(tmp_path / "x-train-000.tar", [clip_sample(i) for i in range(9)])
    shards = open_shards(str(tmp_path), endings=("zip",))
    plan = Plan(shards.lengths, 4, seed=5)
    transform = ClipTransform(8, ClipSampler(3), training=True, options=RICH["rand"])
    several = []
    for workers in (0, 2):
        loader = Loader(shards, plan, transform, workers=workers, modality=Videos())
        several.append(torch.cat([batch.images for batch in loader.batches(0, 4)]))
    assert torch.equal(*several) and several[0].shape == (16, 3, 3, 8, 8)


def without_a_decoder(data: bytes):
    raise MissingExtra("decoding needs x: pip install 'vit_rpe[video]'", name="x")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_decoder_that_is_missing_is_no_bad_sample(tmp_path, workers):
    shards = make_set(tmp_path / "s", (7,))
    plan, modality = Plan(shards.lengths, 3), Images(without_a_decoder)
    loader = Loader(shards, plan, ImageTransform(8), modality=modality, workers=workers)
    with pytest.raises(MissingExtra, match=r"^decoding needs x: pip install 'vit_rpe\[video\]'$"):
        list(loader.epoch(0))
