"""Optimizers draw by seed and step."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from vit_rpe.training.loop.optim import seed_optimizer


def test_optimizers_draw_by_seed_and_step():
    def drawn(*key: int) -> float:
        optimizer = SimpleNamespace(generator=torch.Generator())
        seed_optimizer(optimizer, torch.device("cpu"), *key)
        return float(torch.rand((), generator=optimizer.generator))

    keys = [(1, 5), (2, 5), (1, 6), (5, 1)]
    assert len({drawn(*key) for key in keys}) == len(keys) and drawn(1, 5) == drawn(1, 5)
