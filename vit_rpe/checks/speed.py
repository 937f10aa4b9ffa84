"""Time fused attention beside torch's own, and models beside timm's, in turns in one run.

A contestant that cannot run is named with its reason: it does not end the check.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.attention import forget_plans, masked_linear_attention, masked_softmax_attention
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import Toeplitz

Step = Callable[[], None]
_SWITCH = "VIT_RPE_TRITON"
# tokens a side, samples; 12 heads of 64 channels
LAYERS = ((14, 128), (28, 32), (56, 4))
# pixels a side, images
MODELS = ((224, 64), (448, 16), (896, 2))
HEADS, CHANNELS = 12, 64
BASE = "vit_base_patch16_224"
OURS = ("performer_rpe2d_base_patch16_224", "vit_rpe2d_base_patch16_224")


@dataclass(frozen=True)
class Speed:
    """Forward and backward pass of one contestant: median milliseconds, and over the first's."""

    case: str
    contestant: str
    milliseconds: float | None
    ratio: float | None
    peak_megabytes: float | None
    rounds: int
    failure: str = ""


def layer_speeds(
    device: torch.device,
    cases: tuple[tuple[int, int], ...] = LAYERS,
    seconds: float = 3.0,
    names: tuple[str, ...] | None = None,
) -> Iterator[Speed]:
    """Attention alone, in bfloat16, with the gradient of a learned table."""
    for side, batch in cases:
        contestants = _layers(side, batch, device)
        chosen = {n: x for n, x in contestants.items() if names is None or n in names}
        yield from in_turns(f"{side} x {side} tokens, batch {batch}", chosen, device, seconds)


def model_speeds(
    device: torch.device,
    cases: tuple[tuple[int, int], ...] = MODELS,
    seconds: float = 5.0,
    names: tuple[str, ...] = (BASE, *OURS),
    **options: Any,
) -> Iterator[Speed]:
    """Forward and backward pass of whole models under autocast, without a class token."""
    for pixels, batch in cases:
        contestants = {
            name: partial(_model_step, name, pixels, batch, device, options) for name in names
        }
        yield from in_turns(f"{pixels} pixels, batch {batch}", contestants, device, seconds)


def in_turns(
    case: str, makers: dict[str, Callable[[], Step]], device: torch.device, seconds: float
) -> Iterator[Speed]:
    """Run all contestants in turns for some seconds each, after a few runs to warm up."""
    steps: dict[str, Step] = {}
    failures: dict[str, str] = {}
    peaks: dict[str, float] = {}
    for name, make in makers.items():
        try:
            steps[name], peaks[name] = _warmed_up(make, device)
        except Exception as error:  # whatever is wrong with one of them, others go on
            failures[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds * len(steps)
    while steps and (time.perf_counter() < end or min(map(len, times.values())) < 3):
        for name, step in steps.items():
            times[name].append(_milliseconds(step, device))
    medians = {name: median(found) for name, found in times.items()}
    first = medians.get(next(iter(makers)))
    for name in makers:
        ms = medians.get(name)
        ratio = ms / first if ms is not None and first else None
        rounds = len(times.get(name, ()))
        yield Speed(case, name, ms, ratio, peaks.get(name), rounds, failures.get(name, ""))


def _warmed_up(make: Callable[[], Step], device: torch.device) -> tuple[Step, float]:
    step = make()
    for _ in range(3):
        step()
    if device.type != "cuda":
        return step, float("nan")
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return step, (torch.cuda.max_memory_allocated(device) - before) / 1e6


def _milliseconds(step: Step, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


# --- contestants --------------------------------------------------------------------------------


def _layers(side: int, batch: int, device: torch.device) -> dict[str, Callable[[], Step]]:
    def tokens() -> list[Tensor]:
        shape = (batch, side**2, 3, HEADS, CHANNELS)  # as a model's projection makes them
        qkv = torch.randn(shape, device=device, dtype=torch.bfloat16)
        return [x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2)]

    def table() -> Tensor:
        n = 2 * side - 1
        return torch.rand(HEADS, n, n, device=device).add_(0.05).requires_grad_()

    def step(attend: Callable[..., Tensor], weights: bool = True) -> Step:
        leaves = tokens()
        own = [table()] if weights else []
        grad = torch.randn_like(leaves[2])

        def once() -> None:
            torch.autograd.grad(attend(*leaves, *own), [*leaves, *own], grad)

        return once

    def linear(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        mask = Toeplitz(table, (side, side), nonnegative=True)
        return masked_linear_attention(q, k, v, mask, features=_RELU)

    def softmax(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        mask = Toeplitz(table, (side, side), nonnegative=True)
        return masked_softmax_attention(q, k, v, mask)

    def with_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = Toeplitz(table.log(), (side, side)).dense().to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return {
        "sdpa": lambda: step(F.scaled_dot_product_attention, weights=False),
        "sdpa + bias": lambda: step(with_bias),
        "flex": lambda: step(_flex(side, device)),
        "vit_rpe softmax": lambda: step(softmax),
        "vit_rpe linear": lambda: step(linear),
        "vit_rpe linear, without kernels": lambda: _without_kernels(step(linear)),
    }


_RELU = ReLUFeatures()


def _flex(side: int, device: torch.device) -> Callable[..., Tensor]:
    """FlexAttention with the same learned table."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    cell = torch.arange(side, device=device)
    place = (cell[:, None] * (2 * side - 1) + cell).flatten()
    origin = (side - 1) * 2 * side

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        logs = table.log().flatten(1)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + logs[h, place[i] - place[j] + origin]

        out = compiled(q, k, v, score_mod=score)
        assert isinstance(out, Tensor)
        return out

    return attend


def _without_kernels(step: Step) -> Step:
    def once() -> None:
        with _switched("0"):
            step()

    return once


@contextmanager
def _switched(value: str) -> Iterator[None]:
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = value
    forget_plans()
    try:
        yield
    finally:
        del os.environ[_SWITCH]
        if before is not None:
            os.environ[_SWITCH] = before
        forget_plans()


def _model_step(
    name: str, pixels: int, batch: int, device: torch.device, options: dict[str, Any]
) -> Step:
    head = {"class_token": False, "global_pool": "avg"}
    model = timm.create_model(name, img_size=pixels, **head, **options).to(device).train()
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)

    def once() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    return once
