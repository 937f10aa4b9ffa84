"""Calls that take turns, their time and memory.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

import ctypes
import gc
import random
import re
import signal
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import NoReturn, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

MAX_ROUNDS = 60
STABLE = 0.02  # rounds stop when every median is known to about this fraction


# --- time --------------------------------------------------------------------------------------


def timed(
    call: Callable[[], object], device: str, clock: Callable[[], float] = perf_counter
) -> float:
    """Seconds of one call."""
    start = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError between two operations of a call, where the platform has an alarm."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def expired(*_: object) -> NoReturn:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def try_once(call: Callable[[], object], limit: float, device: str) -> bool:
    """Whether a first call, which also warms up, stays within the limit."""
    try:
        with time_limit(limit):
            return timed(call, device) <= limit
    except TimeoutError:
        return False


def in_turns(
    calls: dict[Key, Callable[[], object]],
    seconds: float,
    device: str,
    seed: int,
    fewest: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> dict[Key, list[float]]:
    """Every call once a round, in a new order each time, until the medians are known.

    After `seconds` it stops, but not before `fewest` rounds. On a busy machine `process_time` is a
    fairer clock, for one thread.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    order, shuffle = list(calls), random.Random(seed).shuffle
    start = perf_counter()
    for rounds in range(1, MAX_ROUNDS + 1):
        shuffle(order)
        for key in order:
            times[key].append(timed(calls[key], device, clock))
        spent = perf_counter() - start
        over = rounds >= fewest and spent * (rounds + 1) / rounds > seconds
        if over or all(map(_is_stable, times.values())):
            break
    return times


def _is_stable(samples: list[float]) -> bool:
    if len(samples) < 5:
        return False
    low, middle, high = quantiles(samples)
    return (high - low) / sqrt(len(samples)) < STABLE * middle


# --- memory ------------------------------------------------------------------------------------


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """Most memory in use during a call, above the start; None where nobody counts it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to the present
        before, mark = _status_bytes("VmRSS"), _status_bytes("VmHWM")
    except (OSError, AttributeError, TypeError, ValueError):
        return None
    if mark > before + (64 << 20):  # it did not fall
        return None
    call()
    return max(_status_bytes("VmHWM") - before, 0)


def peak_mb(call: Callable[[], object], device: str) -> float | None:
    peak = peak_bytes(call, device)
    return None if peak is None else peak / 1e6


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    if found is None:
        raise ValueError(f"/proc/self/status has no {field}")
    return int(found[1]) << 10
