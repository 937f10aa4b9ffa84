"""Batches for a training or evaluation loop, read ahead by worker processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.utils.data import DataLoader

from .batches import Batch, BatchReader, Decoder, Transform
from .errors import ShardError
from .images.decode import ImageDecoder
from .plan import Plan
from .shards.bad_samples import BadSamples
from .shards.index import Shards
from .worker import WorkerContext

PATIENCE = 600.0  # seconds that a batch may take before the run stops instead of hanging


@dataclass
class Loader:
    """Batches of one rank by step. The step is all there is to know about where a run stands.

        loader = Loader(shards, plan, transform, rank=0, world=1, workers=4)
        for batch in loader.batches(start=step, stop=total):     # over the ends of epochs
        for batch in loader.epoch(0):                            # one epoch: evaluation

    Images and labels are on `device`. Neither the number of workers nor the place where one starts
    changes a batch. Never give it to `accelerator.prepare`, which would deal out to the ranks what
    is already dealt out. `bad` takes note of bad samples and stops when there are too many; by
    default 0.1 % of the set are. Too many from an earlier start are looked at again.
    """

    shards: Shards
    plan: Plan
    transform: Transform
    rank: int = 0
    world: int = 1
    workers: int = 0
    num_classes: int | None = None
    decode: Decoder = field(default_factory=ImageDecoder)
    bad: BadSamples | None = None
    prefetch: int = 2
    device: torch.device | str = "cpu"
    pin_memory: bool = False
    timeout: float = PATIENCE

    def __post_init__(self) -> None:
        if self.plan.shard_lengths != self.shards.lengths:
            raise ValueError(
                f"the plan is for {len(self.plan.shard_lengths)} shards with "
                f"{self.plan.num_samples} samples, the set has {len(self.shards.lengths)} with "
                f"{self.shards.num_samples}"
            )
        self.plan.batch(0, self.rank, self.world)  # a plan that has no part for this rank: say so
        if self.bad is None:
            self.bad = BadSamples(self.shards.num_samples)
        self._reader = BatchReader(
            shards=self.shards,
            plan=self.plan,
            transform=self.transform,
            rank=self.rank,
            world=self.world,
            num_classes=self.num_classes,
            decode=self.decode,
        )
        self.bad.review(self._reader.is_bad)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All batches of an epoch, or of what the plan has left of it."""
        return self.batches(self.plan.first_step(epoch), self.plan.first_step(epoch + 1))

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from start up to, not including, stop."""
        assert self.bad is not None
        if not 0 <= start <= stop:
            raise ValueError(f"steps go from start >= 0 to stop >= start, got {start} to {stop}")
        for batch in self._loader(replace(self._reader, start=start, stop=stop)):
            if isinstance(batch, ShardError):
                raise batch
            self.bad.add(batch.bad)
            yield self._reader.finish(batch, torch.device(self.device))

    def _loader(self, reader: BatchReader) -> DataLoader[Batch | ShardError]:
        return DataLoader(
            reader,
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
            timeout=self.timeout if self.workers else 0,
            multiprocessing_context=WorkerContext() if self.workers else None,
            pin_memory=self.pin_memory,
            worker_init_fn=_start_worker,
            # DataLoader draws a seed for its workers, which nobody uses: not from the global
            # generator, whose draws belong to the model
            generator=torch.Generator(),
        )


def _start_worker(_: int) -> None:
    """Keep the garbage collector off what a worker shares with its parent: to look at an object is
    to write into its page, which is then copied, 90 MB for each worker after a while."""
    gc.freeze()
