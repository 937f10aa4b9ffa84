"""What ranks tell each other; that errors of one are errors of all is tested with whole runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.launch import launch
from vit_rpe.extras import MissingExtra
from vit_rpe.training.distributed import (
    all_reduce_sum,
    any_rank,
    broadcast,
    gather_objects,
    gather_rows,
    main_first,
    make_accelerator,
    on_main,
)

ALONE: Any = SimpleNamespace(is_main_process=True, num_processes=1)


def test_the_main_process_calls_once_whatever_comes_back():
    calls = []
    assert main_first(ALONE, lambda: calls.append(1)) is None and calls == [1]
    assert on_main(ALONE, lambda: 3) == 3
    with pytest.raises(OSError, match="full"):
        on_main(ALONE, lambda: (_ for _ in ()).throw(OSError("full")))


def exchanged(count: int) -> dict[str, Any]:
    """Everything that this rank learns from the others."""
    accelerator = make_accelerator("cpu", None)
    rank = accelerator.process_index
    kind = np.dtype([("number", np.int64), ("good", np.bool_), ("logits", np.float64, (2,))])
    rows = np.zeros(count, kind)
    rows["number"], rows["good"], rows["logits"] = 10 * rank + np.arange(count), rank > 0, rank / 3
    return {
        "rows": gather_rows(accelerator, rows),
        "objects": gather_objects(accelerator, {"rank": rank}),
        "main": broadcast(accelerator, rank),
        "any": any_rank(accelerator, rank == 1),
        "none": any_rank(accelerator, False),
        "sums": all_reduce_sum(accelerator, torch.tensor([1.0, float(rank)])),
    }


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_learn_what_the_others_have(world):
    for answer in launch(exchanged, 2, world=world):
        numbers = [10 * rank + i for rank in range(world) for i in range(2)]
        assert answer["rows"]["number"].tolist() == numbers
        assert answer["rows"]["good"].tolist() == [number >= 10 for number in numbers]
        assert answer["rows"]["logits"][-1].tolist() == [(world - 1) / 3] * 2
        assert answer["objects"] == [{"rank": rank} for rank in range(world)]
        assert (answer["main"], answer["any"], answer["none"]) == (0, world > 1, False)
        assert answer["sums"] == [world, sum(range(world))]


def failing() -> None:
    def call() -> None:
        raise MissingExtra("reading needs x: pip install 'vit_rpe[x]'", name="x")

    with pytest.raises(MissingExtra, match="needs x"):
        on_main(make_accelerator("cpu", None), call)


def test_a_missing_extra_of_one_is_one_of_all():
    launch(failing, world=2)
