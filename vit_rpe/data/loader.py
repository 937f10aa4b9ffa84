"""Batches for a training or evaluation loop, read ahead by worker processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader

from .batches import Batch, Batches, DeviceStage, Steps
from .modality import Images, Modality, Transform
from .plan import Entries, Plan
from .shards.bad_samples import BadSamples
from .shards.index import Shards
from .worker import WorkerContext

PATIENCE = 600.0  # seconds that a batch may take before the run stops instead of hanging


class Loader:
    """Batches of one rank by step. A step is all there is to know about the progress of a run.

        loader = Loader(shards, plan, transform, rank=0, world_size=1, workers=4)
        for batch in loader.batches(start=step, stop=total):     # over the ends of epochs
        for batch in loader.epoch(0):                            # one epoch: evaluation

    Images and labels are on `device`. Neither the number of workers nor the step one starts at
    changes a batch. Never give it to `accelerator.prepare`, which would deal out to the ranks what
    is already dealt out. `bad` records bad samples and raises once they exceed a limit, by default
    0.1 % of the set. If there were too many at an earlier start, they are looked at again.
    """

    def __init__(
        self,
        shards: Shards,
        plan: Plan,
        transform: Transform,
        *,
        modality: Modality | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_classes: int | None = None,
        workers: int = 0,
        bad: BadSamples | None = None,
        prefetch: int = 2,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
        timeout: float = PATIENCE,
    ):
        if plan.shard_lengths != shards.lengths:
            raise ValueError(
                f"the plan is for {len(plan.shard_lengths)} shards with {plan.num_samples} "
                f"samples, the set has {len(shards.lengths)} with {shards.num_samples}"
            )
        plan.batch(0, rank, world_size)  # a plan that has no part for this rank: say so
        modality = modality or Images()
        self._made = Batches(shards, plan, transform, modality, rank, world_size, num_classes)
        self._finish = DeviceStage(transform, plan.seed, torch.device(device))
        self._workers, self._prefetch = workers, prefetch
        self._pin_memory, self._timeout = pin_memory, timeout
        self.bad = BadSamples(shards.num_samples) if bad is None else bad
        self.bad.review(self._made.is_bad)

    @property
    def shards(self) -> Shards:
        """The shards that are read."""
        return self._made.shards

    @property
    def plan(self) -> Plan:
        """The plan that says who reads what."""
        return self._made.plan

    @property
    def modality(self) -> Modality:
        """Images or videos."""
        return self._made.modality

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All batches of an epoch, or of what the plan has left of it."""
        return self.batches(self.plan.first_step(epoch), self.plan.first_step(epoch + 1))

    def pick(self, numbers: Sequence[int]) -> Batch:
        """One batch of the samples of these numbers, as they are in the first epoch."""
        index = np.array(numbers, dtype=np.int64)
        return self._finish(self._made.made_of(Entries(index, np.zeros_like(index))))

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from start up to, not including, stop."""
        if not 0 <= start <= stop:
            raise ValueError(f"steps go from start >= 0 to stop >= start, got {start} to {stop}")
        for batch in self._data_loader(Steps(self._made, start, stop)):
            if isinstance(batch, Exception):
                raise batch
            if batch.bad:
                self.bad.add(batch.bad)
            yield self._finish(batch)

    def _data_loader(self, steps: Steps) -> DataLoader[Batch | Exception]:
        return DataLoader(
            steps,
            batch_size=None,
            num_workers=self._workers,
            prefetch_factor=self._prefetch if self._workers else None,
            timeout=self._timeout if self._workers else 0,
            multiprocessing_context=WorkerContext() if self._workers else None,
            pin_memory=self._pin_memory,
            worker_init_fn=_start_worker,
            # DataLoader draws a seed for its workers, which nobody uses: not from the global
            # generator, whose draws belong to the model
            generator=torch.Generator(),
        )


def _start_worker(_: int) -> None:
    """Keep the garbage collector off the objects that a worker shares with its parent.

    Looking at an object writes into its page, which is then copied: 90 MB for each worker after a
    while.
    """
    gc.freeze()
