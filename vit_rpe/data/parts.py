"""A validation part of a split, chosen by a hash of the keys of its samples.

The part of a sample depends only on its key and the fraction: not on the machine, the version of
Python, the number of shards or of processes. A larger fraction takes more samples to those of a
smaller one. Clips of one video (`NAME-clip000`, `NAME-clip001`, ...) have the hash of `NAME`: they
are on one side.

A part is a set of shards like any other, with fewer samples in each: plans, readers and loaders
know nothing of it. Its rows are a table in the cache folder, made once, which all processes of a
machine map.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit_rpe.files import sha256_of

from .errors import ShardError
from .hashing import unit_interval
from .shards.index import Shards, cache_path, write_table
from .videos.clips import CLIP

VERSION = 1  # of the hash; part of the names in the cache
# A hash of its own: what make_shards has held out by another hash says nothing about this one.
_PERSON = b"val_fraction"


def key_hash(key: bytes) -> float:
    """Hash a key to a number from 0 to 1, evenly; clips of one video have the same."""
    name = CLIP.sub(b"", bytes(key))
    return unit_interval(hashlib.blake2b(name, digest_size=8, person=_PERSON).digest())


def split_by_key(shards: Shards, fraction: float) -> tuple[Shards, Shards]:
    """Cut a set in two: what is left to train on, and the part of this fraction to evaluate."""
    if not 0 < fraction < 1:
        raise ValueError(f"the validation part is a fraction between 0 and 1, got {fraction}")
    held = np.fromiter((key_hash(key) < fraction for key in shards.rows["key"].tolist()), bool)
    if not 0 < held.sum() < len(held):
        what = "none" if not held.any() else "all"
        raise ShardError(
            f"a validation part of {fraction:g} has {what} of the {len(held)} samples: take "
            f"{'more' if what == 'none' else 'less'}"
        )
    digest = sha256_of(shards.table)
    return _part(shards, ~held, digest), _part(shards, held, digest)


def _part(shards: Shards, chosen: NDArray[np.bool_], digest: str) -> Shards:
    """Return some samples of a set, with a table of their own, named by what is in it."""
    numbers = np.flatnonzero(chosen)
    path = cache_path("part", digest, hashlib.sha256(chosen.tobytes()).hexdigest(), str(VERSION))
    if not path.exists():
        rows: NDArray[Any] = np.asarray(shards.rows)[numbers]
        write_table(path, [rows])
    lengths = np.bincount(shards.shard_of(numbers), minlength=len(shards.urls))
    return replace(shards, lengths=tuple(lengths.tolist()), table=str(path))
