"""Samples of a set of shards, read by their numbers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ShardError
from .index import Shards, key_text
from .storage import Span
from .tar_index import NO_DATA, NO_LABEL, WRONG_LABEL


class Sample(NamedTuple):
    """The bytes of a sample, as they are in the shard, and what the index says about it."""

    data: bytes
    label: int
    shard: str
    key: str


@dataclass
class SampleReader:
    """Read the samples of a set by number: their own bytes, and no others."""

    shards: Shards
    num_classes: int | None = None

    def __post_init__(self) -> None:
        self._checked: set[int] = set()
        self._has_checksums = "crc" in (self.shards.rows.dtype.names or ())

    def read(self, numbers: NDArray[np.int64]) -> list[Sample | BadSample]:
        """Return the samples of these numbers, in this order; ShardError if a shard was changed."""
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
        """Say what is wrong with a sample; None if nothing is."""
        if size == NO_DATA:
            return "missing member: no image or video"
        if found < size:
            return f"cut off: {found} of {size} bytes"
        if label in (NO_LABEL, WRONG_LABEL):
            return "missing member: no label" if label == NO_LABEL else "wrong label: not a number"
        if self.num_classes is not None and label >= self.num_classes:
            return f"wrong label: {label} is not below {self.num_classes}"
        return None
