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
    """The purpose of a draw: draws for different purposes are unrelated, even for equal keys."""

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
    """Return the numbers below n in an order that depends only on the key."""
    stream = np.random.PCG64(np.random.SeedSequence((purpose, *key)))
    return np.argsort(stream.random_raw(n), kind="stable")


def generator(purpose: Purpose, *key: int) -> np.random.Generator:
    """Make a NumPy generator, for data that are synthesized once, such as moving clips."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((purpose, *key))))


def seed_all(purpose: Purpose, *key: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU): timm's augmentations use all three."""
    first, second, *rest = np.random.SeedSequence((purpose, *key)).generate_state(4).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(rest[0] << 32 | rest[1])


def seed_model(*key: int) -> None:
    """Seed torch's generators on all devices, for what a model draws in a training step."""
    torch.manual_seed(_seed(Purpose.MODEL, *key))


def torch_generator(device: torch.device, purpose: Purpose, *key: int) -> torch.Generator:
    """Make a torch generator on a device, for code that takes one."""
    return torch.Generator(device).manual_seed(_seed(purpose, *key))


def _seed(*key: int) -> int:
    high, low = np.random.SeedSequence(key).generate_state(2).tolist()
    return high << 32 | low


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the generators at the end, so that the caller's draws do not depend on ours."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
