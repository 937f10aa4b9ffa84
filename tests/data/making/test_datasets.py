"""Digits of scikit-learn and datasets of torchvision as sources."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.data.samples import read_back
from vit_rpe.data import ImageDecoder
from vit_rpe.data.making import (
    ImagePreparation,
    digits,
    make_shards,
    torchvision_dataset,
)


def test_digits_are_stratified_and_come_back(tmp_path):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    found = []
    for split, source in digits().items():
        make_shards(source, tmp_path, split, ImagePreparation(samples_per_shard=300))
        part = read_back(tmp_path, split)
        counts = np.bincount([label for label, _ in part])
        whole = np.bincount(bunch.target)
        share = 0.8 if split == "train" else 0.2
        assert (abs(counts - share * whole) <= 1).all()
        found += part
    images = [(np.asarray(ImageDecoder("L")(data), float) * 16 / 255).round() for _, data in found]
    pairs = {(label, image.tobytes()) for (label, _), image in zip(found, images, strict=True)}
    wanted = {(label, im.tobytes()) for label, im in zip(bunch.target, bunch.images, strict=True)}
    assert pairs == wanted and len(found) == 1797


def test_torchvision_dataset(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 5), ("t10k", 3)):
        head = struct.pack(">4I", 0x803, count, 28, 28)
        body = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + body)
        labels = struct.pack(">2I", 0x801, count) + bytes(range(count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    splits = torchvision_dataset("MNIST", tmp_path)
    info = make_shards(splits["test"], tmp_path / "out", "test", ImagePreparation(seed=None))
    assert info.num_samples == 3 and len(splits["train"]) == 5
    assert [label for label, _ in read_back(tmp_path / "out", "test")] == [0, 1, 2]
    first = ImageDecoder("L")(read_back(tmp_path / "out", "test")[0][1])
    np.testing.assert_array_equal(
        first, np.arange(784, dtype=np.uint32).astype(np.uint8).reshape(28, 28)
    )
    with pytest.raises(ValueError, match="torchvision.datasets has no 'MNISTT'"):
        torchvision_dataset("MNISTT", tmp_path)
