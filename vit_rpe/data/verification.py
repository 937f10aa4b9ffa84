"""Check that a set of shards is what its `_info.json` says, and that its samples decode."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from .errors import BadData, BadSample, ShardError
from .modality import Images, Modality
from .parallel import parallel_map
from .shards.index import Shards
from .shards.layout import SplitInfo
from .shards.samples import Sample, SampleReader


def verify(
    shards: Shards,
    split: SplitInfo | None = None,
    *,
    modality: Modality | None = None,
    num_classes: int | None = None,
    workers: int = 1,
    progress: bool = False,
) -> list[BadSample]:
    """Find the bad samples of a set; ShardError for a shard whose checksum is wrong."""
    check = partial(
        _verify_shard,
        shards=shards,
        sums=split.sha256 if split else [],
        modality=modality or Images(),
        num_classes=num_classes,
    )
    title = "verify" if progress else None
    found = parallel_map(check, range(len(shards.urls)), workers, title)
    return [bad for each in found for bad in each]


def _verify_shard(
    shard: int, shards: Shards, sums: list[str], modality: Modality, num_classes: int | None
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
        bad += [sample] if isinstance(sample, BadSample) else _undecodable(sample, modality)
    return bad


def _undecodable(sample: Sample, modality: Modality) -> list[BadSample]:
    try:
        modality.check(sample.data)
    except BadData as error:
        return [BadSample(sample.shard, sample.key, str(error))]
    return []
