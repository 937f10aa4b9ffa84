"""Kernels for GPUs, interpreted on a CPU, into memory that is filled with NaN."""

from importlib.util import find_spec

import pytest
import torch

from vit_rpe.attention.plan import forget_plans

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture
def interpreted(monkeypatch):
    """Take the fused kernels for tensors on a CPU."""
    monkeypatch.setenv("VIT_RPE_TRITON", "1")
    forget_plans()
    yield
    forget_plans()


@pytest.fixture
def poisoned():
    """Fill all memory that torch hands out with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all() and torch.ones(2).new_empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
