"""A replayed step as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit_rpe.report import default_folder, summary, table, write_replay
from vit_rpe.training import Activations, Exhibit, Replayed, Seen
from vit_rpe.training.record.steps import Outcome
from vit_rpe.training.replay.history import History, Start
from vit_rpe.training.replay.route import Leg, Route
from vit_rpe.training.replay.view import Sample

FRAMES = 3


def replayed(folder: Path, loss: float = 2.5, compared: int = 2) -> Replayed:
    """The seventh step of a run on clips, of two samples, one of them bad."""
    activations = Activations()
    activations.add("stem", torch.tensor([1.0, -2.0]))
    activations.add("blocks.0.mlp", torch.tensor([1.0, math.nan]))
    activations.add("blocks.0", torch.tensor([math.inf, math.nan]))
    images = torch.zeros(2, 3, FRAMES, 4, 6, dtype=torch.uint8)
    for frame in range(FRAMES):
        images[0, frame, frame] = 255  # red, green, blue
    samples = [Sample("clip<0>", [("left", 0.75), ("right", 0.25)]), Sample("gone", [])]
    seen = Seen(
        ["stem", "blocks.0", "drop"],
        Outcome(7, loss, 5.0, 1e-3, not math.isfinite(loss)),
        2,
        samples,
        Exhibit("batch", 1, {"images": images}, {}),
        {"pos_embed": 1.0, "stem.weight": 3.0, "stem.bias": 4.0, "blocks.0.w": math.nan},
        ["blocks.0.w"],
        activations,
        False,
    )
    start = Start(0, None)  # pyright: ignore
    route = Route([Leg(start, 5, 7)], folder / "checkpoints" / "epoch-0001")
    return Replayed(History(folder, [start], {}, {}, 9), route, seen, compared, compared > 0)


def test_the_table_has_a_line_for_each_layer_that_learns(tmp_path):
    lines = [line.split() for line in table(replayed(tmp_path).seen).splitlines()]
    assert lines[0] == ["layer", "gradient", "min", "max", "rms", "not", "finite"]
    assert lines[1:] == [
        ["pos_embed", "1"],
        ["stem", "5", "-2", "1", "1.581", "0"],
        ["blocks.0", "nan", "2"],
    ]


def test_the_summary_says_what_was_compared_and_what_is_not_finite(tmp_path):
    text = summary(replayed(tmp_path, math.nan))
    assert "7 in epoch 2, 2 steps from epoch-0001" in text and "nan, skipped" in text
    assert "equal, bit for bit: loss, gradient norm and learning rate, as is 1 step" in text
    assert "first in blocks.0.mlp" in text and "1 of 4 gradients" in text
    assert "the run recorded nothing of this step\n" in summary(replayed(tmp_path, compared=0))


def test_numbers_and_picture_are_in_the_folder_of_the_run(tmp_path):
    made = replayed(tmp_path, math.nan)
    figures, picture = write_replay(made, default_folder(made))
    assert figures.parent == picture.parent == tmp_path / "replay" / "step-00000007"
    numbers = json.loads(figures.read_text(), parse_constant=pytest.fail)
    assert numbers["loss"] == "nan" and numbers["skipped"] and numbers["equal"]
    assert numbers["layers"][1] == {
        **{"layer": "stem", "gradient": 5.0, "min": -2.0, "max": 1.0},
        **{"rms": 2.5**0.5, "nonfinite": 0, "values": 2},
    }
    assert numbers["samples"][1] == {"key": "gone", "classes": []}
    pixels = np.array(Image.open(picture))
    for color in np.eye(3) * 255:  # the three frames of the clip
        assert (pixels == color).all(-1).any()
