"""Random draws as pure functions of integers: nothing depends on who draws, or when.

NumPy promises that SeedSequence and the raw stream of PCG64 stay the same in every release; it does
not promise so for `permutation`. So orders are made from raw numbers here, and a run can be resumed
with another NumPy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Draws for different purposes are unrelated, also where their other numbers agree."""

    SHARDS = 0
    WINDOW = 1
    SAMPLE = 2
    ERASING = 3
    MIXING = 4
    MAKER = 5
    MODEL = 6
    SCENE = 7
    OPTIMIZER = 8


def shuffled(n: int, purpose: Purpose, *key: int) -> NDArray[np.int64]:
    """The numbers below n in an order that follows from the key alone."""
    stream = np.random.PCG64(np.random.SeedSequence((purpose, *key)))
    return np.argsort(stream.random_raw(n), kind="stable")


def generator(purpose: Purpose, *key: int) -> np.random.Generator:
    """Numbers for what is drawn once and kept, such as the motions of a made clip."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((purpose, *key))))


def seed_all(purpose: Purpose, *key: int) -> None:
    """Start the generators of Python, NumPy and torch (CPU): timm's augmentations draw from all."""
    first, second, *rest = np.random.SeedSequence((purpose, *key)).generate_state(4).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(rest[0] << 32 | rest[1])


def seed_model(*key: int) -> None:
    """Start the generators of torch, of all devices, for what a model draws in a training step."""
    torch.manual_seed(_seed(Purpose.MODEL, *key))


def torch_generator(device: torch.device, purpose: Purpose, *key: int) -> torch.Generator:
    """A generator of torch on a device, for what draws from one of its own."""
    return torch.Generator(device).manual_seed(_seed(purpose, *key))


def _seed(*key: int) -> int:
    high, low = np.random.SeedSequence(key).generate_state(2).tolist()
    return high << 32 | low


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Give the generators back as they were: the caller's own draws must not notice ours."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
