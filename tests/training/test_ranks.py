"""What ranks tell each other; that errors of one are errors of all is tested with whole runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vit_rpe.training.distributed import main_first, on_main
from vit_rpe.training.loop.optim import seed_optimizer
from vit_rpe.training.loop.pulse import Pulse

ALONE: Any = SimpleNamespace(is_main_process=True, num_processes=1)


def test_the_main_process_calls_once_whatever_comes_back():
    calls = []
    assert main_first(ALONE, lambda: calls.append(1)) is None and calls == [1]
    assert on_main(ALONE, lambda: 3) == 3
    with pytest.raises(OSError, match="full"):
        on_main(ALONE, lambda: (_ for _ in ()).throw(OSError("full")))


def test_optimizers_draw_by_seed_and_step():
    def drawn(*key: int) -> float:
        optimizer = SimpleNamespace(generator=torch.Generator())
        seed_optimizer(optimizer, torch.device("cpu"), *key)
        return float(torch.rand((), generator=optimizer.generator))

    keys = [(1, 5), (2, 5), (1, 6), (5, 1)]
    assert len({drawn(*key) for key in keys}) == len(keys) and drawn(1, 5) == drawn(1, 5)


def test_of_ranks_that_live_those_elsewhere_are_behind(tmp_path):
    ranks = [Pulse(tmp_path, rank, 3, timeout=100) for rank in range(3)]
    for rank, place in zip(ranks, ("step 7", "data of step 7", "step 7"), strict=True):
        rank.status.open()
        rank.at(place)
        rank._beat()
    assert ranks[0]._silent(50) == {} and ranks[0]._elsewhere() == {1: "data of step 7"}
    (tmp_path / ".ranks" / "1.json").unlink()
    assert ranks[2]._elsewhere() == {1: "an unknown place"}
