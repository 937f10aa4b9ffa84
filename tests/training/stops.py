"""Runs that stop: by a signal at a given step or batch, on a given rank."""

from __future__ import annotations

import os
from typing import Any


def run_to_end(recipe: str, *overrides: str) -> int:
    from vit_rpe.cli.train import main

    return main(["--recipe", recipe, *overrides])


def run_and_stop(recipe: str, stop: dict[str, Any], *overrides: str) -> int:
    """Send a signal to one rank alone, at a step or at a batch of an evaluation."""
    from vit_rpe.training import evaluation
    from vit_rpe.training.loop import trainer

    rank = int(os.environ.get("RANK", 0))
    seen = 0

    def reach(place: int) -> None:
        if rank == stop["rank"] and place == stop["at"]:
            os.kill(os.getpid(), stop["signal"])

    if stop["where"] == "step":
        train_step = trainer.Trainer.train_step

        def stopping(self: Any, batch: Any) -> Any:
            reach(self.state.step)
            return train_step(self, batch)

        trainer.Trainer.train_step = stopping
    else:
        rows = evaluation._rows

        def stopping_rows(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            reach(seen)
            return rows(*args)

        evaluation._rows = stopping_rows
    return run_to_end(recipe, *overrides)
