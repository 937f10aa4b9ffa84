"""The figures of every step of a run, in `steps.f64`: what a replayed step is compared with.

A row of five float64 for each step, little-endian, in order: step, loss, gradient norm, learning
rate, 1 if it was skipped. A row of a step that was not recorded is all zeros.

    numpy.fromfile("runs/quickstart/steps.f64", "<f8").reshape(-1, 5)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_rpe.files import read_regular

STEPS = "steps.f64"
ROW = struct.Struct("<5d")


class Outcome(NamedTuple):
    """The figures of a step, the same on all ranks; steps count from 1."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    skipped: bool


def read_steps(run: Path) -> dict[int, Outcome]:
    """Return what a run recorded, by step; a run of an earlier version recorded nothing."""
    try:
        data = read_regular(run / STEPS)
    except FileNotFoundError:
        return {}
    rows = np.frombuffer(data[: len(data) - len(data) % ROW.size], "<f8").reshape(-1, 5)
    there = rows[:, 0] == np.arange(1, len(rows) + 1)
    return {
        int(step): Outcome(int(step), loss, norm, lr, bool(skipped))
        for step, loss, norm, lr, skipped in rows[there].tolist()
    }
