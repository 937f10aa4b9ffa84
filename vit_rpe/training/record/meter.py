"""Speed and size of training: step times, waiting for data, memory, FLOPs and utilization."""

from __future__ import annotations

import copy
import resource
import sys
from collections import deque
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..run import Run

KEPT = 1000  # steps that percentiles look back on
BACKWARD = 3  # a training step is about three forward passes, recomputation not counted


class Meter:
    """Times of steps; percentiles leave out the first, as it warms up."""

    def __init__(
        self, batch_size: int, flops_per_image: int | None, peak: float | None, unit: str = "img"
    ):
        self.batch_size, self.flops, self.peak, self.unit = batch_size, flops_per_image, peak, unit
        self.steps: deque[tuple[float, float]] = deque(maxlen=KEPT)  # seconds, of them waiting
        self._warm = False
        self._recent: list[tuple[float, float]] = []
        self._text = ""

    def add(self, seconds: float, waited: float) -> None:
        """Count a step, and how much of its time went into waiting for data."""
        if self._warm:
            self.steps.append((seconds, waited))
        self._warm = True
        self._recent.append((seconds, waited))

    @property
    def mean_step(self) -> float:
        """Mean seconds per step, for the estimate of the time left."""
        times = self.steps or self._recent
        return sum(seconds for seconds, _ in times) / max(len(times), 1)

    def report(self) -> dict[str, float | None]:
        """Return figures since the last report, and percentiles of the steps before."""
        spent = sum(seconds for seconds, _ in self._recent)
        rate = self.batch_size * len(self._recent) / spent if spent else 0.0
        waited = sum(waited for _, waited in self._recent)
        self._recent = []
        self._text = f"{rate:.0f} {self.unit}/s, data {waited / max(spent, 1e-9):.0%}"
        times = [seconds for seconds, _ in self.steps] or [self.mean_step]
        used = self.flops * BACKWARD * rate / self.peak if self.flops and self.peak else None
        return {
            f"{self.unit}_per_s": rate,
            "data_wait": waited / spent if spent else 0.0,
            "step_p50_ms": 1e3 * float(np.percentile(times, 50)),
            "step_p95_ms": 1e3 * float(np.percentile(times, 95)),
            "memory_mb": peak_memory() / 1e6,
            "mfu": used,
        }

    def text(self) -> str:
        """Return the last report in a few words."""
        return self._text or "..."


def meter_for(run: Run, net: nn.Module) -> Meter:
    """Make a meter that knows the FLOPs of a model and those that the processes can reach."""
    side: int = net.pretrained_cfg["input_size"][-1]  # pyright: ignore
    peak = reachable_flops(run.device, run.precision.dtype) * run.world_size
    return Meter(run.recipe.batch_size, forward_flops(net, side), peak, run.modality.unit)


def peak_memory() -> int:
    """Return the most bytes in use so far, on the GPU or by this process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forward_flops(model: nn.Module, side: int) -> int | None:
    """Count the FLOPs of one forward pass; None if they cannot be counted.

    Multiplications and additions both count. The meta device computes nothing, and does not use
    compiled kernels, which the counter cannot see into.
    """
    try:
        twin: Any = copy.deepcopy(model).to("meta").eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            twin(torch.empty(1, 3, side, side, device="meta"))
        return counter.get_total_flops()
    except Exception:  # whatever a model does on the meta device, training can do without
        return None


def reachable_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Measure the FLOPs per second of a large matrix product: 100 % of the utilization."""
    side = 4096 if device.type == "cuda" else 768
    a = torch.ones(side, side, device=device, dtype=dtype)
    best, start = float("inf"), perf_counter()
    while perf_counter() - start < seconds:
        before = perf_counter()
        b = a @ a
        float(b[0, 0])  # wait for the device
        best = min(best, perf_counter() - before)
    return 2 * side**3 / best
