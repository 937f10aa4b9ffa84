"""The progress of a run: with the learner's snapshot, everything in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit_rpe.data import Shards

from ..errors import CheckpointError
from .checkpoint import Snapshot, read_checkpoint
from .integrity import STATE, checked


@dataclass
class RunState:
    """The counters and the history of a run."""

    step: int = 0
    epoch: int = 0  # finished ones, evaluation included
    loss_sum: float = 0.0  # over the steps of this epoch so far
    loss_steps: int = 0
    skipped: int = 0  # steps of this epoch
    history: list[dict[str, Any]] = field(default_factory=list)  # a row of summary.csv per epoch
    ranking: list[tuple[str, float]] = field(default_factory=list)  # checkpoints, best first


@dataclass(frozen=True)
class Progress:
    """The part of a checkpoint that is for the trainer."""

    state: RunState
    log: int  # bytes of log.jsonl so far
    samples: list[int]  # of each shard
    data: str | None = None  # the digest of the shards; older checkpoints have none


def read_progress(folder: Path, shards: Shards, data_dir: str) -> tuple[Progress, Snapshot]:
    """Read a checkpoint of a run on these shards; refuse one that was made with other data."""
    found, snapshot = read_checkpoint(folder)
    progress = checked(Progress, found, folder / STATE)
    if progress.samples != list(shards.lengths):
        raise CheckpointError(
            f"{folder} was made with shards of other lengths than those at {data_dir}"
        )
    if progress.data not in (None, shards.digest):
        raise CheckpointError(
            f"{folder} was made with other data than those at {data_dir}; a run is resumed only "
            "with the data that it began with"
        )
    return progress, snapshot
