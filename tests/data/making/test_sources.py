"""Files that are no files are bad samples."""

from __future__ import annotations

import os

import pytest

from tests.data.samples import write_images
from vit_rpe.data import BadData
from vit_rpe.data.making import (
    ImagePreparation,
    image_folder,
    make_shards,
    video_folder,
)


@pytest.mark.parametrize("kind", ["fifo", "zero", "gone", "folder"])
def test_what_is_not_a_file_is_a_bad_sample(tmp_path, kind):
    write_images(tmp_path / "in", cat=3)
    odd = tmp_path / "in" / "cat" / "odd.png"
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        (tmp_path / "empty").mkdir()
        targets = {"zero": "/dev/zero", "gone": "nowhere", "folder": tmp_path / "empty"}
        odd.symlink_to(targets[kind])
    source = image_folder(tmp_path / "in")["train"]
    info = make_shards(source, tmp_path / "out", "train", ImagePreparation(), max_bad=0.3)
    assert info.num_samples == 3
    if len(source) == 4:  # a link to a folder is not taken for an image
        assert "odd.png" in (tmp_path / "out" / "bad_samples-train.csv").read_text()


def test_a_frame_folder_with_a_fifo_is_bad(tmp_path):
    folder = tmp_path / "run" / "frames"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "1.png")
    source = video_folder(tmp_path)["train"]
    with pytest.raises((BadData, OSError), match="not a regular file"):
        source.item(0)
