"""Whether a set of shards is what its `_info.json` says, and whether its images decode."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..batches import Sample, SampleReader
from ..errors import BadData, BadSample, ShardError
from ..images.decode import ImageDecoder
from ..parallel import in_processes
from .index import Shards
from .layout import SplitInfo


def verify(
    shards: Shards,
    split: SplitInfo | None = None,
    *,
    num_classes: int | None = None,
    decode: Callable[[bytes], Any] | None = None,
    workers: int = 1,
    progress: bool = False,
) -> list[BadSample]:
    """The bad samples of a set. A shard whose checksum is wrong is an error."""
    check = partial(
        _verify_one,
        shards=shards,
        sums=split.sha256 if split else [],
        num_classes=num_classes,
        decode=decode or ImageDecoder(),
    )
    title = "verify" if progress else None
    found = in_processes(check, range(len(shards.urls)), workers, title)
    return [bad for each in found for bad in each]


def _verify_one(
    shard: int,
    shards: Shards,
    sums: list[str],
    num_classes: int | None,
    decode: Callable[[bytes], Any],
) -> list[BadSample]:
    url = shards.urls[shard]
    if sums:
        with shards.storage.open(url) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sums[shard]:  # pyright: ignore
                raise ShardError(f"{url} has not the SHA-256 sum that _info.json says")
    first = sum(shards.lengths[:shard])
    reader = SampleReader(shards, num_classes)
    bad = []
    for number in range(first, first + shards.lengths[shard]):
        (sample,) = reader.read(np.array([number]))
        bad += [sample] if isinstance(sample, BadSample) else _undecodable(sample, decode)
    return bad


def _undecodable(sample: Sample, decode: Callable[[bytes], Any]) -> list[BadSample]:
    try:
        decode(sample.data)
    except BadData as error:
        return [BadSample(sample.shard, sample.key, str(error))]
    return []
