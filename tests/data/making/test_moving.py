"""Clips of moving images: the motion is the class's, and a single frame does not tell it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vit_rpe.data import VideoDecoder
from vit_rpe.data.making import MovingDigits, MovingPairs, moving_digits, moving_pairs
from vit_rpe.data.making.moving import MOTIONS

DIGITS = MovingDigits(np.random.default_rng(0).integers(1, 256, (200, 8, 8), dtype=np.uint8))
STEPS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}


def clips(name: str) -> list[np.ndarray]:
    found = [DIGITS.clip(i) for i in range(len(DIGITS))]
    return [clip for clip, label in found if DIGITS.classes[label] == name]


def steps(clip: np.ndarray) -> list[tuple[int, int]]:
    """How far the picture moved from frame to frame, down and right, by trying all."""
    tried = [(y, x) for y in range(-4, 5) for x in range(-4, 5)]
    return [
        next(s for s in tried if np.array_equal(np.roll(before, s, (0, 1)), after))
        for before, after in zip(clip[:-1], clip[1:], strict=True)
    ]


@pytest.mark.parametrize("name", STEPS)
def test_straight_motions(name):
    speeds = set()
    for clip in clips(name):
        (step,) = set(steps(clip))  # the same in all frames
        speed = max(map(abs, step))
        assert step == tuple(speed * d for d in STEPS[name])
        speeds.add(speed)
    assert speeds == {1, 2}


@pytest.mark.parametrize(("name", "turn"), [("clockwise", 1), ("anticlockwise", -1)])
def test_circles_turn_their_way_and_close(name, turn):
    for clip in clips(name):
        path = np.cumsum([(0, 0), *steps(clip)], 0)
        y, x = (path - path.mean(0)).T
        area = float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())  # y goes down
        assert np.sign(area) == turn and np.abs(path[-1] - path[0]).max() <= 4


@pytest.mark.parametrize(("name", "axis"), [("swinging sideways", 1), ("swinging up and down", 0)])
def test_swings_go_there_and_back(name, axis):
    for clip in clips(name):
        moved = np.array(steps(clip))
        assert not moved[:, 1 - axis].any()
        assert moved[:, axis].min() < 0 < moved[:, axis].max()


def test_a_single_frame_does_not_tell_the_class():
    """In every class a picture can be anywhere: with one image, frames of all classes are alike."""
    one = MovingDigits(DIGITS.images[:1], copies=8000, side=10)
    found = [one.clip(i) for i in range(len(one))]
    for t in (0, 5):
        for label in range(len(MOTIONS)):
            frames = {clip[t].tobytes() for clip, of in found if of == label}
            assert len(frames) == 100  # all places of a 10 x 10 canvas


def test_sources_are_reproducible_and_held_out():
    train, val = moving_digits().values()
    assert (len(train), len(val)) == (2884, 710)
    assert train.item(7) == moving_digits()["train"].item(7)
    assert train.fingerprint() != val.fingerprint()
    frames = VideoDecoder()(train.item(7).data).frames(range(8))
    np.testing.assert_array_equal(frames[:, 0].numpy(), train.clip(7)[0])
    images = {image.tobytes() for image in train.images}
    assert sum(image.tobytes() in images for image in val.images) == 0


def test_pairs_move_as_their_class_says():
    images = np.stack(
        [np.full((3, 3), value, np.uint8) for value in (50, 100, 150) for _ in (0, 1)]
    )
    pairs = MovingPairs(
        images, np.repeat([4, 5, 6], 2), kinds={4: "a", 5: "b", 6: "c"}, clips=60, side=30
    )
    values = {4: 50, 5: 100, 6: 150}
    assert len(pairs.classes) == 6 and pairs.classes[0] == "a across, b up or down"
    covered = 0
    for i in range(60):
        clip, label = pairs.clip(i)
        for kind, still in zip(pairs.pairs[label], (0, 1), strict=True):
            seen = clip == values[kind]
            assert seen.any()
            lines = {
                tuple(np.flatnonzero(frame.any(1 - still))) for frame in seen if frame.sum() == 9
            }
            assert len(lines) == 1  # across: always the same rows; up or down: the same columns
            moving = {tuple(np.flatnonzero(frame.any(still))) for frame in seen if frame.sum() == 9}
            assert len(moving) > 1
            covered += int(any(frame.sum() < 9 for frame in seen))
    assert covered > 0  # they do pass over each other


def test_fashion_mnist():
    folder = os.environ.get("VIT_RPE_DATA")
    if not folder or not (Path(folder) / "fashion-mnist").is_dir():
        pytest.skip("VIT_RPE_DATA names no folder with fashion-mnist in it")
    splits = moving_pairs(Path(folder) / "fashion-mnist", train=24, test=12)
    assert {name: len(source) for name, source in splits.items()} == {"train": 24, "test": 12}
    clip, label = splits["train"].clip(5)
    assert clip.shape == (8, 48, 48) and label == 5 and clip.any()
