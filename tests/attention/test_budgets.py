"""Paths stay within their budget, forward and backward."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vit_rpe.attention import masked_linear_attention
from vit_rpe.masks import Exponential, Toeplitz

MB = 1 << 20


def peak_megabytes(run) -> float:
    """The most that torch holds at once while `run` runs, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / MB


@pytest.mark.slow
@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_memory_stays_within_the_budget(path, budget):
    grid = (80, 90)  # the matrix itself would take 200 MB, and each of its gradients as much
    q, k, v = (torch.rand(1, 7200, 16, requires_grad=True) for _ in range(3))
    rates = torch.full((1, 1), 0.1, requires_grad=True)
    table = torch.rand(1, 159, 179, requires_grad=True)

    def run() -> None:
        scanned = Exponential(rates, torch.ones(1, 1), grid)
        mask = scanned if path == "scan" else Toeplitz(table, grid)
        out = masked_linear_attention(q, k, v, mask, path=path, budget=budget * MB)
        out.sum().backward()

    peak = peak_megabytes(run)
    assert peak < budget + 8  # the budget, outputs and gradients
    assert peak > (4 if path == "scan" else budget / 8)  # and it is used; compiled states are few


def test_the_measure_sees_what_is_held():
    def run() -> None:
        held = [torch.empty(MB) for _ in range(4)]
        held.clear()

    assert 15 < peak_megabytes(run) < 18
