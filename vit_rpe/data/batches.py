"""Samples of shards by their numbers, and the batches of a plan made of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from vit_rpe.messages import cut

from .errors import NO_MEMORY, BadData, BadSample, ShardError
from .images.decode import ImageDecoder
from .making.preparation import check_all
from .plan import PADDING, Entries, Plan, worker_steps
from .seeding import Purpose, kept_generators, seed_all
from .shards.index import Shards, key_text
from .shards.storage import Span
from .shards.tar_index import NO_DATA, NO_LABEL, WRONG_LABEL

IGNORED = -100  # label of a place without a good sample; torch's losses pass over it

Decoder = Callable[[bytes], Any]
Place = tuple["Sample | BadSample | None", Tensor | None]  # None: padding; no image: a bad sample


class Sample(NamedTuple):
    """The bytes of a sample, as they lie in the shard, and what the index says about it."""

    data: bytes
    label: int
    shard: str
    key: str


class Batch(NamedTuple):
    """What one rank gets at one step. `step` counts from the beginning of the run.

    `images` are (B, C, H, W), clips (B, C, T, H, W), or several views of each, (B, V, C, T, H, W).
    Places that are padding, or whose sample is bad, have `valid` False, the label IGNORED and zeros
    for an image. `sample` is the number of the sample in its set, PADDING (-1) for none; `first` is
    the place of the first sample in the batch of all ranks.
    """

    epoch: int
    step: int
    first: int
    images: Tensor
    labels: Tensor
    valid: Tensor
    sample: Tensor
    copy: Tensor
    keys: list[str]
    bad: list[BadSample]


class Transform(Protocol):
    """What becomes of decoded samples.

    Called with an epoch, it makes the function from a sample to a tensor of bytes of this shape,
    for the workers. `finish` is for whole batches, on the device of the model; where it draws, each
    sample has its key of random draws.
    """

    def __call__(self, epoch: int) -> Callable[[Any], Tensor]: ...
    def shape(self, epoch: int) -> tuple[int, ...]: ...
    def finish(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor: ...


@dataclass
class SampleReader:
    """Reads the samples of a set by number: their own bytes, and no others."""

    shards: Shards
    num_classes: int | None = None

    def __post_init__(self) -> None:
        self._checked: set[int] = set()
        self._has_checksums = "crc" in (self.shards.rows.dtype.names or ())

    def read(self, numbers: NDArray[np.int64]) -> list[Sample | BadSample]:
        rows, shards = self.shards.rows[numbers], self.shards.shard_of(numbers).tolist()
        for shard in set(shards) - self._checked:
            self.shards.check_size(shard)
            self._checked.add(shard)
        spans = [
            Span(self.shards.urls[shard], int(row["offset"]), max(int(row["size"]), 0))
            for row, shard in zip(rows, shards, strict=True)
        ]
        data = self.shards.storage.read(spans)
        return [self._sample(*each) for each in zip(rows, spans, data, strict=True)]

    def _sample(self, row: Any, span: Span, data: bytes) -> Sample | BadSample:
        key = key_text(row["key"])
        reason = self._fault(int(row["size"]), int(row["label"]), len(data))
        if reason is not None:
            return BadSample(span.url, key, reason)
        if self._has_checksums and zlib.crc32(data) != row["crc"]:
            raise ShardError(
                f"{span.url}: the sample {key!r} is not what it was when its index was made: the "
                "shard was damaged or replaced (make_shards.py verify compares all of them)"
            )
        return Sample(data, int(row["label"]), span.url, key)

    def _fault(self, size: int, label: int, found: int) -> str | None:
        if size == NO_DATA:
            return "missing member: no image or video"
        if found < size:
            return f"cut off: {found} of {size} bytes"
        if label in (NO_LABEL, WRONG_LABEL):
            return "missing member: no label" if label == NO_LABEL else "wrong label: not a number"
        if self.num_classes is not None and label >= self.num_classes:
            return f"wrong label: {label} is not below {self.num_classes}"
        return None


@dataclass
class BatchReader(IterableDataset["Batch | ShardError"]):
    """The batches of one rank, from step `start` to `stop`; workers of a DataLoader take turns.

    A shard that cannot be used ends them. Its error is handed over, not raised: what a worker
    raises, DataLoader would turn into a page of text.
    """

    shards: Shards
    plan: Plan
    transform: Transform
    rank: int = 0
    world: int = 1
    start: int = 0
    stop: int = 0
    num_classes: int | None = None
    decode: Decoder = field(default_factory=ImageDecoder)

    def __post_init__(self) -> None:
        self._reader = SampleReader(self.shards, self.num_classes)

    def __iter__(self) -> Iterator[Batch | ShardError]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        try:
            for step in worker_steps(self.start, self.stop, worker, workers):
                yield self.batch(step)
        except ShardError as error:
            yield error

    def batch(self, step: int) -> Batch:
        """The batch of a step: the same wherever and whenever it is made."""
        epoch, _ = self.plan.locate(step)
        entries = self.plan.batch(step, self.rank, self.world)
        apply = self.transform(epoch)
        with kept_generators():
            places = [
                self._place(sample, apply, (epoch, number, copy))
                for sample, number, copy in zip(
                    self._samples(entries.sample),
                    entries.sample.tolist(),
                    entries.copy.tolist(),
                    strict=True,
                )
            ]
        return self._collate(epoch, step, entries, places)

    def is_bad(self, known: BadSample) -> bool:
        """Look again at a sample that was bad: all of a video is decoded now."""
        for number in self.shards.find(known.shard, known.key):
            (sample,) = self._reader.read(np.array([number]))
            with kept_generators():
                place = self._place(sample, self._whole, (0, number, 0))
            return isinstance(place[0], BadSample)
        return False

    def _whole(self, decoded: Any) -> Tensor:
        if hasattr(decoded, "num_frames"):
            check_all(decoded)
        return self.transform(0)(decoded)

    def finish(self, batch: Batch, device: torch.device) -> Batch:
        """What is left to do for a batch in the process of the model, on its device."""
        seeds = [self.plan.seed] * len(batch.sample), [batch.epoch] * len(batch.sample)
        draws = list(
            zip(*seeds, batch.sample.clamp(min=0).tolist(), batch.copy.tolist(), strict=True)
        )
        images = self.transform.finish(batch.images.to(device, non_blocking=True), draws)
        if not batch.valid.all():
            images[~batch.valid.to(device)] = 0
        labels = batch.labels.to(device, non_blocking=True)
        return batch._replace(images=images, labels=labels)

    def _samples(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample | None]:
        found = iter(self._reader.read(numbers[numbers != PADDING]))
        return (None if number == PADDING else next(found) for number in numbers.tolist())

    def _place(
        self,
        sample: Sample | BadSample | None,
        apply: Callable[[Any], Tensor],
        key: tuple[int, ...],
    ) -> Place:
        if not isinstance(sample, Sample):
            return sample, None
        try:
            decoded = self.decode(sample.data)
            seed_all(Purpose.SAMPLE, self.plan.seed, *key)
            return sample, apply(decoded)  # the frames of a video are decoded here, some of them
        except BadData as error:
            return BadSample(sample.shard, sample.key, cut(error)), None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "alloc" not in str(error):
                raise  # torch says in this way that there is no memory
            return BadSample(sample.shard, sample.key, NO_MEMORY), None

    def _collate(self, epoch: int, step: int, entries: Entries, places: Sequence[Place]) -> Batch:
        samples, images = zip(*places, strict=True)
        labels = [sample.label if isinstance(sample, Sample) else IGNORED for sample in samples]
        if any(image is None for image in images):
            blank = torch.zeros(self.transform.shape(epoch), dtype=torch.uint8)
            images = [blank if image is None else image for image in images]
        return Batch(
            epoch=epoch,
            step=step,
            first=self.rank * len(samples),
            images=default_collate(list(images)),  # right into shared memory, if in a worker
            labels=torch.tensor(labels),
            valid=torch.tensor([isinstance(sample, Sample) for sample in samples]),
            sample=torch.from_numpy(entries.sample),
            copy=torch.from_numpy(entries.copy),
            keys=["" if sample is None else sample.key for sample in samples],
            bad=[sample for sample in samples if isinstance(sample, BadSample)],
        )
