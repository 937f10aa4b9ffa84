"""The index of a set of shards: where every sample lies, mapped into memory, made once and kept.

A row is 24 bytes and a key. The table is a plain .npy file that all workers of a machine share
through the page cache, so that 10,000 shards cost no start-up time and no memory.

Shards of our own have a checksum in each row, and `_info.json` has one of the table: what is read
is what was written. Of shards of others only the headers are read, which have none.
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

from vit_rpe.files import atomic_write, cache_folder, sha256_of
from vit_rpe.messages import shown

from ..errors import MissingShards, ShardError
from ..parallel import in_processes
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
from .storage import (
    Storage,
    check_address,
    is_command,
    is_remote,
    join,
    local_path,
)
from .tar_index import Row, scan

VERSION = 1  # of the rows; part of the names in the cache
FIELDS = {"offset": "<i8", "size": "<i8", "label": "<i4"}  # and the key; CRC where it is known
CRC = {"crc": "<u4"}  # of the bytes of the sample


@dataclass(frozen=True)
class Shards:
    """Shards and the rows of all their samples, which are numbered through the shards."""

    urls: tuple[str, ...]
    lengths: tuple[int, ...]
    table: str
    classes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()  # of the files, where they are known, in bytes
    sums: tuple[str, ...] = ()  # SHA-256 of the files, where they are known
    storage: Storage = field(default_factory=Storage, compare=False)

    def __post_init__(self) -> None:
        if self.rows.shape != (self.num_samples,):
            raise ShardError(
                f"{self.table} has {self.rows.size} rows for {shown(self.num_samples)} samples: "
                "remove it, and it is made again"
            )
        missing = {*FIELDS, "key"} - set(self.rows.dtype.names or ())
        if missing:
            raise ShardError(f"{self.table} is not an index: it has no column {min(missing)!r}")

    @property
    def num_samples(self) -> int:
        return sum(self.lengths)

    @cached_property
    def rows(self) -> NDArray[Any]:
        """Fields key, offset, size and label for each sample, read from disk as they are used."""
        try:
            if not os.path.isfile(self.table):
                raise ValueError("it is not a regular file")
            return np.load(self.table, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise ShardError(f"{self.table} is not an index: {error}") from None

    @cached_property
    def digest(self) -> str:
        """What tells these data from others, wherever they lie: a SHA-256 sum."""
        content = self.sums or [hashlib.sha256(self.rows.tobytes()).hexdigest()]
        return hashlib.sha256(repr((self.lengths, *content)).encode()).hexdigest()

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64)

    def shard_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, samples, side="right")

    def find(self, url: str, key: str) -> list[int]:
        """The number of a sample by its shard and key; none where there is no such sample."""
        if url not in self.urls:
            return []
        shard = self.urls.index(url)
        first = sum(self.lengths[:shard])
        keys = self.rows["key"][first : first + self.lengths[shard]].tolist()
        return [first + i for i, each in enumerate(keys) if key_text(each) == key]

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


def key_text(key: bytes) -> str:
    """A key as people see it."""
    return bytes(key).decode("utf-8", "replace")


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
    for each in [address] if isinstance(address, str) else address:
        check_address(each)
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
    path = local_path(table)
    if split.index_sha256 and os.path.isfile(path) and sha256_of(path) != split.index_sha256:
        raise ShardError(
            f"{path} is not the index that _info.json names: it is damaged, or of other shards; "
            "make the shards again (what is whole is kept), or remove it and read without checksums"
        )
    return Shards(
        urls,
        tuple(split.shard_lengths),
        path,
        tuple(info.classes),
        sizes=tuple(split.shard_bytes),
        sums=tuple(split.sha256),
        storage=storage,
    )


def _fetched(table: str, info: Info, storage: Storage) -> str:
    """A local copy of an index, because it has to be mapped; of the version of this info."""
    path = _cache_path("index", table, repr(info))
    if not path.exists():
        with storage.open(table) as source, atomic_write(path) as target:
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
    lengths = _kept_lengths(path)
    if lengths is None:
        work = partial(scan_shard, storage=storage, endings=endings)
        scanned = list(in_processes(work, urls, workers, "index" if progress else None))
        write_table(path, scanned)
        lengths = tuple(len(rows) for rows in scanned)
        with atomic_write(path.with_suffix(".json")) as file:
            file.write(json.dumps(lengths).encode())
    if split is not None:
        check_lengths(split, lengths)
    sums = () if split is None else tuple(split.sha256)
    return Shards(urls, lengths, str(path), tuple(classes), sums=sums, storage=storage)


def _kept_lengths(table: Path) -> tuple[int, ...] | None:
    """The lengths of the shards of an index in the cache, if it is there and whole."""
    try:
        lengths = tuple(map(int, json.loads(table.with_suffix(".json").read_text())))
        rows = np.load(table, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, OverflowError, RecursionError):
        return None
    return lengths if rows.shape == (sum(lengths),) and min(lengths, default=0) >= 0 else None


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


def as_table(rows: Sequence[Row], checksums: Sequence[int] | None = None) -> NDArray[Any]:
    """Rows of an index, with the CRC-32 sums of the samples where they are known."""
    keys = [row.key.encode("utf-8", "surrogateescape") for row in rows]
    width = max(map(len, keys), default=1)
    numbers = FIELDS if checksums is None else FIELDS | CRC
    table = np.empty(len(rows), dtype=[*numbers.items(), ("key", f"S{width}")])
    table["key"] = keys
    for name in FIELDS:
        table[name] = [getattr(row, name) for row in rows]
    if checksums is not None:
        table["crc"] = checksums
    return table


def write_table(path: str | Path, tables: Sequence[NDArray[Any]]) -> str:
    """The rows of all shards as one .npy file: no pickle in it, so that reading it runs nothing.

    Gives its SHA-256 sum.
    """
    with atomic_write(path) as file:
        np.lib.format.write_array(file, np.concatenate(tables), allow_pickle=False)
    return sha256_of(path)
