"""Who reads what: the position of every sample, as a pure function of (seed, epoch, step).

An epoch is a list of entries (sample, repeat). Its shards are put in a new order and cut into
windows of a few shards, and the samples of each window are shuffled; with repeated augmentation
every sample is then in the list `repeats` times. Step t takes the next `batch_size` entries, rank r
the r-th part of them, and worker w every `workers`-th step. So

- the batch of all ranks depends neither on their number nor on the workers,
- every rank has the same number of steps, whatever the lengths of the shards,
- a run is resumed from one integer, the step, in the time that one window takes,
- at any time only the shards of one window, or two at its end, are being read.

Samples are numbered through the shards: those of the first shard, then those of the second, ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .seeding import Purpose, shuffled

Integers = NDArray[np.int64]
PADDING = -1  # in place of a sample, where a batch has no more


class Entries(NamedTuple):
    """The samples to read for a batch, by number, PADDING for none; and which repeat of each."""

    sample_index: Integers
    repeat: Integers


@dataclass(frozen=True)
class Plan:
    """The order of each epoch and its cut into steps; `batch_size` is that of all ranks together.

    `drop_last` leaves the last, incomplete batch of an epoch out; otherwise it is padded. Steps are
    counted from the beginning of the plan, which is `start` entries into epoch `first_epoch`.
    """

    shard_lengths: tuple[int, ...]
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    window: int = 64
    repeats: int = 1
    drop_last: bool = True
    first_epoch: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "window": 1, "repeats": 1, "seed": 0, "first_epoch": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"a plan needs {name} >= {value}, got {getattr(self, name)}")
        if min(self.shard_lengths, default=0) < 0:
            raise ValueError(f"lengths of shards are 0 or more, got {min(self.shard_lengths)}")
        if not 0 <= self.start <= self.num_entries:
            raise ValueError(
                f"start must lie within the {self.num_entries} entries of an epoch, "
                f"got {self.start}"
            )
        if self.steps == 0:
            raise ValueError(
                f"{self.num_entries} entries do not fill one batch of {self.batch_size}: take a "
                "smaller batch_size or drop_last=False"
            )

    @cached_property
    def num_samples(self) -> int:
        return sum(self.shard_lengths)

    @property
    def num_entries(self) -> int:
        """Entries of a whole epoch: each sample `repeats` times."""
        return self.num_samples * self.repeats

    @property
    def steps(self) -> int:
        """Steps of a whole epoch: the same on every rank."""
        return self._steps(self.num_entries)

    def _steps(self, entries: int) -> int:
        full, left = divmod(entries, self.batch_size)
        return full + bool(left and not self.drop_last)

    def first_step(self, epoch: int) -> int:
        """The step at which an epoch begins, or this plan, if it begins within that epoch."""
        later = epoch - self.first_epoch
        if later < 0:
            raise ValueError(f"this plan begins in epoch {self.first_epoch}, got {epoch}")
        left = self._steps(self.num_entries - self.start)
        return left + (later - 1) * self.steps if later else 0

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and the number of its first entry there."""
        if step < 0:
            raise ValueError(f"steps are counted from 0, got {step}")
        later = step - self.first_step(self.first_epoch + 1)
        if later < 0:
            return self.first_epoch, self.start + step * self.batch_size
        epochs, within = divmod(later, self.steps)
        return self.first_epoch + 1 + epochs, within * self.batch_size

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Entries:
        """The part of one rank in the batch of a step."""
        if not 0 <= rank < world_size:
            raise ValueError(f"{world_size} ranks are numbered from 0, got rank {rank}")
        size = self.per_rank(world_size)
        epoch, entry = self.locate(step)
        return self._entries(epoch, np.arange(size) + entry + rank * size)

    def per_rank(self, world_size: int) -> int:
        """Samples of one rank in a batch."""
        if self.batch_size % world_size:
            raise ValueError(
                f"a batch of {self.batch_size} has no equal parts for {world_size} ranks"
            )
        return self.batch_size // world_size

    def after(self, step: int, batch_size: int) -> Plan:
        """Plan the rest after `step` steps, in batches of another size: for other ranks.

        Its steps count from 0 again. No sample is lost or comes twice.
        """
        epoch, entry = self.locate(step)
        return replace(self, batch_size=batch_size, first_epoch=epoch, start=entry)

    def _entries(self, epoch: int, positions: Integers) -> Entries:
        inside = positions < self.num_entries
        order, repeat = _spread(positions, self.num_samples, self.repeats)
        sample = np.full_like(positions, PADDING)
        sample[inside] = self._samples(epoch, order[inside])
        return Entries(sample, np.where(inside, repeat, 0))

    def _samples(self, epoch: int, positions: Integers) -> Integers:
        """The samples at some positions in the order of an epoch."""
        if not self.shuffle:
            return positions
        _, starts = self._epoch(epoch)
        window = np.searchsorted(starts, positions, side="right") - 1
        sample = np.empty_like(positions)
        for w in np.unique(window).tolist():
            here = window == w
            sample[here] = self._window(epoch, w)[positions[here] - starts[w]]
        return sample

    @cached_property
    def _first_samples(self) -> Integers:
        return np.cumsum((0, *self.shard_lengths), dtype=np.int64)

    @cached_property
    def _epoch(self) -> Callable[[int], tuple[Integers, Integers]]:
        """The order of the shards of an epoch, and the position where each window starts."""

        @lru_cache(maxsize=2)
        def make(epoch: int) -> tuple[Integers, Integers]:
            order = shuffled(len(self.shard_lengths), Purpose.SHARDS, self.seed, epoch)
            lengths = np.diff(self._first_samples)[order]
            return order, np.cumsum(np.append(0, lengths[:-1]))[:: self.window]

        return make

    @cached_property
    def _window(self) -> Callable[[int, int], Integers]:
        """The samples of a window in their order. A batch rarely touches more than two windows."""

        @lru_cache(maxsize=2)
        def make(epoch: int, window: int) -> Integers:
            shards = self._epoch(epoch)[0][window * self.window : (window + 1) * self.window]
            first, last = self._first_samples[shards], self._first_samples[shards + 1]
            samples = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
            return samples[shuffled(len(samples), Purpose.WINDOW, self.seed, epoch, window)]

        return make

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields: what was computed from them is not sent to workers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _spread(positions: Integers, samples: int, repeats: int) -> tuple[Integers, Integers]:
    """Position in the order, and repeat, of entries: a b a b a b, c d c d c d, ... for three.

    Repeats are so close that they mostly fall into one batch, which is the point of repeated
    augmentation; and neighbors, which mixup mixes, are different samples.
    """
    pair, within = np.divmod(positions, 2 * repeats)
    members = np.where(2 * pair + 1 < samples, 2, 1)  # the last of an odd number has no neighbor
    return 2 * pair + within % members, within // members


def worker_steps(start: int, stop: int, worker: int, workers: int) -> range:
    """The steps that a worker prepares: DataLoader asks its workers in turn."""
    return range(start + worker, stop, max(workers, 1))
