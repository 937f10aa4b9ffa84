"""The batches of a plan: what workers make of samples, and what is left for the model's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from vit_rpe.extras import MissingExtra
from vit_rpe.messages import cut

from .errors import NO_MEMORY, BadData, BadSample, ShardError
from .modality import Images, Modality, Transform
from .plan import PADDING, Entries, Plan, worker_steps
from .seeding import Purpose, preserve_rng, seed_all
from .shards.index import Shards
from .shards.samples import Sample, SampleReader

IGNORED = -100  # the label of padding and of bad samples, which torch's losses pass over


class Batch(NamedTuple):
    """The samples of one rank at one step. `step` counts from the beginning of the run.

    `images` are (B, C, H, W), clips (B, C, T, H, W), or several views of each, (B, V, C, T, H, W).
    Padding and bad samples have `valid` False, the label IGNORED and an all-zero image.
    `sample_index` is the number of the sample in its set, PADDING (-1) for none; `repeat` counts
    the repetitions of a sample in an epoch. `global_offset` is the position of the first sample in
    the batch of all ranks.
    """

    epoch: int
    step: int
    global_offset: int
    images: Tensor
    labels: Tensor
    valid: Tensor
    sample_index: Tensor
    repeat: Tensor
    keys: list[str]
    bad: list[BadSample]


class Slot(NamedTuple):
    """One position of a batch: good samples have an image, bad ones a reason, padding neither."""

    key: str = ""
    label: int = IGNORED
    image: Tensor | None = None
    bad: BadSample | None = None


@contextmanager
def bad_if_too_large() -> Iterator[None]:
    """Raise BadData for a sample that needs more memory than there is."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise  # torch says in this way that there is no memory
        raise BadData(NO_MEMORY) from None


@dataclass
class Batches:
    """The batches of one rank as the workers make them: decoded, transformed, still bytes."""

    shards: Shards
    plan: Plan
    transform: Transform
    modality: Modality = Images()
    rank: int = 0
    world_size: int = 1
    num_classes: int | None = None

    def __post_init__(self) -> None:
        self._reader = SampleReader(self.shards, self.num_classes)

    def batch(self, step: int) -> Batch:
        """Make the batch of a step: the same wherever and whenever it is made."""
        epoch, _ = self.plan.locate(step)
        return self.made_of(self.plan.batch(step, self.rank, self.world_size), epoch, step)

    def made_of(self, entries: Entries, epoch: int = 0, step: int = 0) -> Batch:
        """Make a batch of any samples, as they are in an epoch."""
        apply = self.transform(epoch)
        with preserve_rng():
            slots = [
                self._slot(sample, apply, (epoch, number, repeat))
                for sample, number, repeat in zip(
                    self._samples(entries.sample_index),
                    entries.sample_index.tolist(),
                    entries.repeat.tolist(),
                    strict=True,
                )
            ]
        return self._collate(epoch, step, entries, slots)

    def is_bad(self, known: BadSample) -> bool:
        """Look again at a sample that was bad, and decode all of it, every frame of a video."""
        for number in self.shards.find(known.shard, known.key):
            (sample,) = self._reader.read(np.array([number]))
            with preserve_rng():
                slot = self._slot(sample, self.transform(0), (0, number, 0), whole=True)
            return slot.bad is not None
        return False

    def _samples(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample | None]:
        found = iter(self._reader.read(numbers[numbers != PADDING]))
        return (None if number == PADDING else next(found) for number in numbers.tolist())

    def _slot(
        self,
        sample: Sample | BadSample | None,
        apply: Callable[[Any], Tensor],
        key: tuple[int, ...],
        whole: bool = False,
    ) -> Slot:
        if sample is None:
            return Slot()
        if isinstance(sample, BadSample):
            return Slot(sample.key, bad=sample)
        try:
            with bad_if_too_large():
                if whole:
                    self.modality.check(sample.data)
                decoded = self.modality.decode(sample.data)
                seed_all(Purpose.SAMPLE, self.plan.seed, *key)
                # the frames of a video are decoded here, and only those of the clip
                return Slot(sample.key, sample.label, apply(decoded))
        except BadData as error:
            return Slot(sample.key, bad=BadSample(sample.shard, sample.key, cut(error)))

    def _collate(self, epoch: int, step: int, entries: Entries, slots: Sequence[Slot]) -> Batch:
        images = [slot.image for slot in slots]
        if any(image is None for image in images):
            blank = torch.zeros(self.transform.shape(epoch), dtype=torch.uint8)
            images = [blank if image is None else image for image in images]
        return Batch(
            epoch=epoch,
            step=step,
            global_offset=self.rank * len(slots),
            images=default_collate(images),  # right into shared memory, if in a worker
            labels=torch.tensor([slot.label for slot in slots]),
            valid=torch.tensor([slot.image is not None for slot in slots]),
            sample_index=torch.from_numpy(entries.sample_index),
            repeat=torch.from_numpy(entries.repeat),
            keys=[slot.key for slot in slots],
            bad=[slot.bad for slot in slots if slot.bad is not None],
        )


@dataclass
class Steps(IterableDataset["Batch | Exception"]):
    """The batches of the steps from `start` to `stop`; workers of a DataLoader take turns.

    A shard that cannot be used ends them. Its error is handed over, not raised: DataLoader would
    turn what a worker raises into a page of text.
    """

    batches: Batches
    start: int
    stop: int

    def __iter__(self) -> Iterator[Batch | Exception]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        try:
            for step in worker_steps(self.start, self.stop, worker, workers):
                yield self.batches.batch(step)
        except (ShardError, MissingExtra) as error:
            yield error


@dataclass(frozen=True)
class DeviceStage:
    """The rest of a batch, on the device of the model: bytes to normalized floats, and erasing."""

    transform: Transform
    seed: int
    device: torch.device

    def __call__(self, batch: Batch) -> Batch:
        numbers, repeats = batch.sample_index.clamp(min=0).tolist(), batch.repeat.tolist()
        draws = [(self.seed, batch.epoch, *each) for each in zip(numbers, repeats, strict=True)]
        images = self.transform.normalize(batch.images.to(self.device, non_blocking=True), draws)
        if not batch.valid.all():
            images[~batch.valid.to(self.device)] = 0
        labels = batch.labels.to(self.device, non_blocking=True)
        return batch._replace(images=images, labels=labels)
