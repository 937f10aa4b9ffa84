"""idx files as sources."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import pixels, read_back
from vit_rpe.data import (
    ImageDecoder,
)
from vit_rpe.data.making import (
    Arrays,
    ImagePreparation,
    idx_folder,
    make_shards,
    read_idx,
)


def test_fashion_mnist_comes_back(tmp_path):
    data = os.environ.get("VIT_RPE_DATA")
    folder = Path(data or "") / "fashion-mnist"
    if not data or not folder.is_dir():
        pytest.skip("VIT_RPE_DATA names no folder with fashion-mnist in it")
    source = idx_folder(folder)["test"]
    assert isinstance(source, Arrays) and len(source) == 10_000
    part = Arrays(source.images[:700], source.labels[:700], source.classes)
    make_shards(part, tmp_path, "test", ImagePreparation(samples_per_shard=256, seed=None))
    for i, (label, data) in enumerate(read_back(tmp_path, "test")):
        assert label == source.labels[i]
        np.testing.assert_array_equal(ImageDecoder("L")(data), source.images[i])


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


def test_idx_files(tmp_path):
    images = pixels(1, 7, 5)[None, :, :, 0].repeat(3, 0)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([2, 0, 1], np.uint8))
    (split,) = idx_folder(tmp_path).items()
    assert split[0] == "test" and [split[1].item(i).label for i in range(3)] == [2, 0, 1]
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([2, 0], np.uint8))
    with pytest.raises(ValueError, match="has 3 images and 2 labels"):
        idx_folder(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03\0"))
    with pytest.raises((ValueError, struct.error)):
        idx_folder(tmp_path)


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
