"""The index of a set of shards: where every sample lies, mapped into memory, made once and kept.

A row is 20 bytes and a key. The table is a plain .npy file that all workers of a machine share
through the page cache, so that 10,000 shards cost no start-up time and no memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import MissingShards, ShardError
from .layout import (
    IMAGE_ENDINGS,
    Info,
    SplitInfo,
    exists,
    find_shards,
    index_name,
    is_pattern,
    read_info,
)
from .parallel import in_processes
from .scan import Row, scan
from .storage import Storage, cache_folder, is_command, is_remote, join, local_path, written_whole

VERSION = 1  # of the rows; part of the names in the cache


@dataclass(frozen=True)
class Shards:
    """Shards and the rows of all their samples, which are numbered through the shards."""

    urls: tuple[str, ...]
    lengths: tuple[int, ...]
    table: str
    classes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()  # of the files, where they are known, in bytes
    storage: Storage = field(default_factory=Storage, compare=False)

    def __post_init__(self) -> None:
        if self.rows.shape != (self.num_samples,):
            raise ShardError(
                f"{self.table} has {len(self.rows)} rows for {self.num_samples} samples: remove "
                "it, and it is made again"
            )

    @property
    def num_samples(self) -> int:
        return sum(self.lengths)

    @cached_property
    def rows(self) -> NDArray[Any]:
        """Fields key, offset, size and label for each sample, read from disk as they are used."""
        try:
            return np.load(self.table, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ShardError(f"{self.table} is not an index: {error}") from None

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64)

    def shard_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, samples, side="right")

    def check_size(self, shard: int) -> None:
        """A shard that was changed after its index was made would give wrong samples."""
        url = self.urls[shard]
        if not self.sizes or (is_remote(url) and not self.storage.cache):
            return
        size = self.storage.size(url)
        if size != self.sizes[shard]:
            raise ShardError(
                f"{url} has {size} bytes, and {self.sizes[shard]} when its index was made"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without the table, which each process maps for itself."""
        state = dict(self.__dict__)
        state.pop("rows", None)
        return state


def open_shards(
    address: str | Sequence[str],
    split: str | None = None,
    *,
    endings: Sequence[str] = IMAGE_ENDINGS,
    cache: str | None = None,
    allow_pipe: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> Shards:
    """Shards in a folder, behind an fsspec address, by a pattern `x-{000..146}.tar`, or in a list.

    With `_info.json` and our index beside them nothing is read but these. Otherwise the headers of
    all shards are read once, by `workers` processes, and the index is kept in the cache folder; a
    count in `_info.json` that is wrong is an error. `cache` keeps shards from afar in that folder.
    """
    storage = Storage(cache, allow_pipe)
    info = None
    if isinstance(address, str):
        address = os.path.expanduser(address)
        info = None if is_pattern(address) else read_info(address, storage)
    if info is not None and isinstance(address, str):
        chosen, how = _chosen(info, split, address), (tuple(endings), workers, progress)
        return _open_listed(address, info, chosen, storage, how)
    urls = find_shards(address, split) if isinstance(address, str) else list(address)
    if not urls:
        raise ShardError("an empty list of shards")
    return _open_cached(tuple(urls), None, storage, tuple(endings), workers, progress)


def _chosen(info: Info, split: str | None, address: str) -> SplitInfo:
    if split is None and len(info.splits) == 1:
        return next(iter(info.splits.values()))
    if split not in info.splits:
        raise MissingShards(f"no split {split!r} at {address!r}; there are {sorted(info.splits)}")
    return info.splits[split]


def _open_listed(
    folder: str,
    info: Info,
    split: SplitInfo,
    storage: Storage,
    how: tuple[tuple[str, ...], int, bool],
) -> Shards:
    """By `_info.json`, with our table beside it if there is one."""
    urls = tuple(join(folder, name) for name in split.filenames)
    table = join(folder, index_name(split.name))
    if not exists(table):
        return _open_cached(urls, split, storage, *how, info.classes)
    if is_remote(table):
        table = _fetched(table, info, storage)
    lengths, sizes = tuple(split.shard_lengths), tuple(split.shard_bytes)
    return Shards(urls, lengths, local_path(table), tuple(info.classes), sizes, storage)


def _fetched(table: str, info: Info, storage: Storage) -> str:
    """A local copy of an index, because it has to be mapped; of the version of this info."""
    path = _cache_path("index", table, repr(info))
    if not path.exists():
        with storage.open(table) as source, written_whole(path) as target:
            target.write(source.read())
    return str(path)


def _open_cached(
    urls: tuple[str, ...],
    split: SplitInfo | None,
    storage: Storage,
    endings: tuple[str, ...],
    workers: int,
    progress: bool,
    classes: Sequence[str] = (),
) -> Shards:
    """By an index in the cache folder, made now if it is not there or if a file has changed."""
    known = [(url, _stamp(url)) for url in urls]
    path = _cache_path("rows", *map(str, known), *endings, str(VERSION))
    lengths_path = path.with_suffix(".json")
    if not lengths_path.exists():
        work = partial(scan_shard, storage=storage, endings=endings)
        scanned = list(in_processes(work, urls, workers, "index" if progress else None))
        write_table(path, scanned)
        with written_whole(lengths_path) as file:
            file.write(json.dumps([len(rows) for rows in scanned]).encode())
    lengths = tuple(json.loads(lengths_path.read_text()))
    if split is not None:
        check_lengths(split, lengths)
    return Shards(urls, lengths, str(path), tuple(classes), (), storage)


def check_lengths(split: SplitInfo, lengths: Sequence[int]) -> None:
    for name, claimed, found in zip(split.filenames, split.shard_lengths, lengths, strict=True):
        if claimed != found:
            raise ShardError(f"_info.json says {claimed} samples for {name}, which has {found}")


def _stamp(url: str) -> str:
    """What tells a new version of a local file from the old; others are told by name alone."""
    if is_remote(url) or is_command(url):
        return ""
    try:
        status = os.stat(local_path(url))
    except OSError as error:
        raise ShardError(f"{url} cannot be read: {error.strerror}") from None
    return f"{status.st_size} {status.st_mtime_ns}"


def _cache_path(kind: str, *parts: str) -> Path:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return cache_folder() / "index" / f"{kind}-{digest}.npy"


def scan_shard(url: str, storage: Storage, endings: Sequence[str]) -> NDArray[Any]:
    with storage.open(url) as file:
        return as_table(scan(file, url, endings))


def as_table(rows: Sequence[Row]) -> NDArray[Any]:
    keys = [row.key.encode("utf-8", "surrogateescape") for row in rows]
    width = max(map(len, keys), default=1)
    dtype = [("offset", "<i8"), ("size", "<i8"), ("label", "<i4"), ("key", f"S{width}")]
    table = np.empty(len(rows), dtype=dtype)
    table["key"] = keys
    for name in ("offset", "size", "label"):
        table[name] = [getattr(row, name) for row in rows]
    return table


def write_table(path: str | Path, tables: Sequence[NDArray[Any]]) -> None:
    """The rows of all shards as one .npy file: no pickle in it, so that reading it runs nothing."""
    with written_whole(path) as file:
        np.lib.format.write_array(file, np.concatenate(tables), allow_pickle=False)
