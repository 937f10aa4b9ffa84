"""Clips made of still images that move: sets on which a single frame cannot tell the class.

Everything moves on a torus: what leaves the canvas on one side comes back on the other, and motions
start at a uniformly drawn point. So each frame by itself looks alike in all classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..seeding import Purpose, generator
from .datasets import digits
from .idx import idx_folder
from .sources import Item, Source, clip_item, digest

Bytes = NDArray[np.uint8]
Draw = np.random.Generator
Track = NDArray[np.float64]  # (T, 2): how far down and right, frame by frame

PERIOD = 8  # frames of a circle or a swing
KINDS = {1: "trouser", 2: "pullover", 7: "sneaker", 8: "bag"}  # of Fashion-MNIST
DIRECTIONS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}


def straight(draw: Draw, time: NDArray[np.int64], direction: tuple[int, int]) -> Track:
    """Draw a straight track of one or two pixels a frame."""
    return draw.integers(1, 3) * np.outer(time, direction).astype(np.float64)


def circling(draw: Draw, time: NDArray[np.int64], turn: int) -> Track:
    """Draw a circle, clockwise for `turn` 1, the other way for -1."""
    angle = turn * 2 * np.pi * (time / PERIOD + draw.random())
    return draw.uniform(2.5, 4) * np.stack([np.sin(angle), np.cos(angle)], 1)


def swinging(draw: Draw, time: NDArray[np.int64], direction: tuple[int, int]) -> Track:
    """Draw a swing to and fro along a direction."""
    wave = np.sin(2 * np.pi * (time / PERIOD + draw.random()))
    return draw.uniform(2.5, 4) * wave[:, None] * np.array(direction)


MOTIONS: dict[str, Callable[[Draw, NDArray[np.int64]], Track]] = {
    **{name: lambda d, t, to=to: straight(d, t, to) for name, to in DIRECTIONS.items()},
    "clockwise": lambda d, t: circling(d, t, 1),
    "anticlockwise": lambda d, t: circling(d, t, -1),
    "swinging sideways": lambda d, t: swinging(d, t, (0, 1)),
    "swinging up and down": lambda d, t: swinging(d, t, (1, 0)),
}


@dataclass(frozen=True)
class MovingDigits:
    """Images in motion, each `copies` times, in one of MOTIONS: the class is the motion."""

    images: Bytes  # (N, h, w)
    copies: int = 2
    frames: int = 8
    side: int = 16
    seed: int = 0

    classes = tuple(MOTIONS)

    def __len__(self) -> int:
        return len(self.images) * self.copies

    def item(self, i: int) -> Item:
        return clip_item(*self.clip(i))

    def clip(self, i: int) -> tuple[Bytes, int]:
        """Make the frames (T, H, W) of a clip, and its class."""
        draw = generator(Purpose.SCENE, self.seed, i)
        label = int(draw.integers(len(MOTIONS)))
        track = MOTIONS[self.classes[label]](draw, np.arange(self.frames))
        return _moved(self.images[i // self.copies], track, draw, self.side), label

    def fingerprint(self) -> str:
        shape = (self.images.shape, self.copies, self.frames, self.side, self.seed)
        return digest(["moving digits", shape, self.images.tobytes()])


@dataclass(frozen=True)
class MovingPairs:
    """Two items of different kinds in motion, one across, the other up or down.

    The class says which kind does which. Knowing the items and the motions, but not which item has
    which motion, tells half of it.
    """

    images: Bytes  # (N, h, w)
    labels: NDArray[np.int64]
    kinds: Mapping[int, str]  # labels and names
    clips: int
    frames: int = 8
    side: int = 48
    seed: int = 0

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(permutations(self.kinds, 2))

    @property
    def classes(self) -> list[str]:
        names = [(self.kinds[across], self.kinds[along]) for across, along in self.pairs]
        return [f"{across} across, {along} up or down" for across, along in names]

    def __len__(self) -> int:
        return self.clips

    def item(self, i: int) -> Item:
        return clip_item(*self.clip(i))

    def clip(self, i: int) -> tuple[Bytes, int]:
        label = i % len(self.pairs)
        draw = generator(Purpose.SCENE, self.seed, i)
        layers = []
        for kind, ways in zip(self.pairs[label], (("right", "left"), ("down", "up")), strict=True):
            image = self.images[draw.choice(np.flatnonzero(self.labels == kind))]
            direction = DIRECTIONS[ways[draw.integers(2)]]
            track = straight(draw, np.arange(self.frames), direction) * 2
            layers.append(_moved(image, track, draw, self.side))
        front, back = layers[:: 1 if draw.integers(2) else -1]  # either may be in front
        return np.where(front > 0, front, back), label

    def fingerprint(self) -> str:
        shape = (
            self.images.shape,
            tuple(self.kinds),
            self.clips,
            self.frames,
            self.side,
            self.seed,
        )
        return digest(["moving pairs", shape, self.images.tobytes(), self.labels.tolist()])


def _moved(image: Bytes, track: Track, draw: Draw, side: int) -> Bytes:
    """Move an image along a track from a random start, (T, side, side)."""
    canvas = np.zeros((side, side), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    shifts = np.round(track + draw.integers(0, side, 2)).astype(int)
    return np.stack([np.roll(canvas, tuple(shift), (0, 1)) for shift in shifts.tolist()])


def moving_digits() -> dict[str, Source]:
    """Put scikit-learn's digits in motion; validation clips have images of their own."""
    return {
        split: MovingDigits(source.images, seed=number)
        for number, (split, source) in enumerate(digits().items())
    }


def moving_pairs(folder: str | Path, train: int = 12_000, test: int = 2_000) -> dict[str, Source]:
    """Put pairs of Fashion-MNIST's items in motion, from its idx files."""
    sizes = {"train": train, "test": test}
    return {
        split: MovingPairs(source.images, source.labels, KINDS, sizes[split], seed=number)
        for number, (split, source) in enumerate(idx_folder(folder).items())
    }
