"""Clips are drawn as they are, with their classes."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from PIL import Image

from vit_rpe.data.making import Clips, VideoPreparation, make_shards


@pytest.fixture(scope="module")
def tool():
    return import_module("tools.figures.clips")


@pytest.fixture
def shards(tmp_path) -> str:
    levels = np.arange(5, dtype=np.uint8)[:, None, None, None] * 50
    clips = np.broadcast_to(levels, (5, 4, 16, 16))
    make_shards(Clips(clips, np.arange(5), list("abcde")), tmp_path, "train", VideoPreparation())
    return str(tmp_path)


def test_a_picture_of_clips(tool, shards, tmp_path, capsys):
    path = tmp_path / "new" / "clips.png"
    tool.main([shards, "--output", str(path), "--frames", "3", "--clips", "4", "--size", "16"])
    assert str(path) in capsys.readouterr().out
    with Image.open(path) as image:
        assert image.width > 200 and image.height > 300
    args = tool.parse([shards, "--frames", "3", "--size", "16", "--clips", "9"])
    batch, names = tool.one_batch(args)
    for clip, label, name in zip(batch.images, batch.labels, names, strict=True):
        assert name == "abcde"[label]
        np.testing.assert_allclose(clip, label * 50 / 255, atol=1e-6)


def test_wrong_input_gives_one_line(tool, shards, tmp_path):
    for arguments, message in (
        ([str(tmp_path / "none")], "no shards"),
        ([shards, "--frames", "9"], "too short: 4 frames, a clip needs 9"),
        ([shards, "--frames", "2", "--augment", "rand-x"], "trivial or rand-mM-nN"),
    ):
        with pytest.raises(SystemExit) as stop:
            tool.main([*arguments, "--output", str(tmp_path / "x.png")])
        text = str(stop.value)
        assert text.startswith("figures/clips: error: ") and message in text and "\n" not in text
