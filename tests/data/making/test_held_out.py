"""A validation split that is held out by file names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.samples import encoded, write_images
from vit_rpe.data.making import (
    hold_out,
    image_folder,
)


def test_a_share_is_held_out_class_by_class(tmp_path):
    whole = image_folder(write_images(tmp_path, cat=120, dog=80, yak=2))
    splits = hold_out(whole, 0.25)
    assert list(splits) == ["train", "val"]
    names = {split: set(part.names) for split, part in splits.items()}
    assert not names["train"] & names["val"]
    assert names["train"] | names["val"] == set(whole["train"].names)  # pyright: ignore
    counts = np.bincount(splits["val"].labels)
    assert abs(counts[0] - 30) < 15 and abs(counts[1] - 20) < 12
    assert counts[2] == 1  # of two, one for each
    assert list(splits["val"].classes) == ["cat", "dog", "yak"]


def test_files_stay_where_they_are_when_others_come(tmp_path):
    before = hold_out(image_folder(write_images(tmp_path, cat=40, dog=30)), 0.2)
    for i in range(200, 260):
        (tmp_path / "cat" / f"{i}.png").write_bytes(encoded(0))
    after = hold_out(image_folder(tmp_path), 0.2)
    assert set(before["val"].names) <= set(after["val"].names)
    assert set(before["train"].names) <= set(after["train"].names)


def test_what_cannot_be_held_out(tmp_path):
    write_images(tmp_path / "train", cat=2)
    write_images(tmp_path / "val", cat=2)
    with pytest.raises(ValueError, match="there are the splits train, val already"):
        hold_out(image_folder(tmp_path), 0.5)
    with pytest.raises(ValueError, match="the split is called val already"):
        hold_out(image_folder(tmp_path / "val", "val"), 0.5)
