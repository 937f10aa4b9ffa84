"""What the benchmarks share: calls that take turns, their time and memory, their command line."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import platform
import random
import re
import signal
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import timm
import torch
from command_line import new_file, positive_integer

import vit_rpe

Key = TypeVar("Key", bound=Hashable)

MAX_ROUNDS = 60
STABLE = 0.02  # rounds stop when every median is known to about this fraction


# --- time --------------------------------------------------------------------------------------


def timed(call: Callable[[], object], device: str) -> float:
    """Seconds of one call."""
    start = perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


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
    calls: dict[Key, Callable[[], object]], seconds: float, device: str, seed: int, fewest: int = 1
) -> dict[Key, list[float]]:
    """Every call once a round, in a new order each time, until the medians are known.

    After `seconds` it stops, but not before `fewest` rounds.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    order, shuffle = list(calls), random.Random(seed).shuffle
    start = perf_counter()
    for rounds in range(1, MAX_ROUNDS + 1):
        shuffle(order)
        for key in order:
            times[key].append(timed(calls[key], device))
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


# --- command line ------------------------------------------------------------------------------


def chosen(text: str, names: list[str]) -> list[str]:
    """The names that a list picks, by themselves or by a part: `a/b`, `a` or `b`."""
    wanted = [part.strip() for part in text.split(",")]
    for part in wanted:
        if not any(part in (name, *name.split("/")) for name in names):
            raise argparse.ArgumentTypeError(
                f"no contestant {part!r}; there are {', '.join(names)}"
            )
    return [name for name in names if any(part in (name, *name.split("/")) for part in wanted)]


def add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--threads", type=positive_integer, help="of torch (default: all)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--seed", type=int, default=0)
    add("--json", type=new_file, help="write all medians and settings to this file")


def check_device(parser: argparse.ArgumentParser, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device")


def environment(device: str) -> dict[str, Any]:
    """When and on what a benchmark ran."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "gpu": gpu},
        "versions": {
            "vit_rpe": vit_rpe.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }
