"""The index of a set of shards: where every sample is, mapped into memory, made once and kept.

A row is 24 bytes and a key. The table is a plain .npy file that all workers of a machine share
through the page cache, so that 10,000 shards cost no start-up time and no memory.

Shards of our own have a checksum in each row, and `_info.json` has one of the table: what is read
is what was written. Shards made by others have no checksums: only their headers are read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit_rpe.files import atomic_write, cache_folder, sha256_of
from vit_rpe.messages import shown

from ..errors import MissingShards, ShardError
from ..images.decode import IMAGE_ENDINGS
from ..parallel import parallel_map
from .layout import (
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
from .tar_index import Row, index_tar

VERSION = 1  # of the rows; part of the names in the cache
FIELDS = {"offset": "<i8", "size": "<i8", "label": "<i4"}  # and the key; CRC if it is known
CRC = {"crc": "<u4"}  # of the bytes of the sample


class IndexOptions(NamedTuple):
    """How the headers of shards are read, where there is no index yet."""

    endings: tuple[str, ...]
    workers: int
    progress: bool


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
        """A SHA-256 sum of the data, the same wherever they are stored."""
        content = self.sums or [hashlib.sha256(self.rows.tobytes()).hexdigest()]
        return hashlib.sha256(repr((self.lengths, *content)).encode()).hexdigest()

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64)

    def shard_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the shard that each sample is in."""
        return np.searchsorted(self._ends, samples, side="right")

    def find(self, url: str, key: str) -> list[int]:
        """Find the number of a sample by its shard and key; an empty list if there is none."""
        if url not in self.urls:
            return []
        shard = self.urls.index(url)
        first = sum(self.lengths[:shard])
        keys = self.rows["key"][first : first + self.lengths[shard]].tolist()
        return [first + i for i, each in enumerate(keys) if key_text(each) == key]

    def check_size(self, shard: int) -> None:
        """Raise ShardError if a shard has changed its size since its index was made."""
        url = self.urls[shard]
        if not self.sizes or (is_remote(url) and not self.storage.cache):
            return
        size = self.storage.size(url)
        if size != self.sizes[shard]:
            raise ShardError(
                f"{url} has {size} bytes, and {self.sizes[shard]} when its index was made"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the table, which each process maps for itself."""
        state = dict(self.__dict__)
        state.pop("rows", None)
        return state


def key_text(key: bytes) -> str:
    """Decode a key for people to read."""
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
    """Open the shards of a folder, an fsspec address, a pattern `x-{000..146}.tar` or a list.

    With `_info.json` and our index next to them nothing else is read. Otherwise the headers of all
    shards are read once, by `workers` processes, and the index is kept in the cache folder; a count
    in `_info.json` that is wrong is an error. `cache` is a folder that keeps remote shards.
    """
    for each in [address] if isinstance(address, str) else address:
        check_address(each)
    storage, options = Storage(cache, allow_pipe), IndexOptions(tuple(endings), workers, progress)
    info = None
    if isinstance(address, str):
        address = os.path.expanduser(address)
        info = None if is_pattern(address) else read_info(address, storage)
    if info is not None and isinstance(address, str):
        return _open_listed(address, info, _chosen(info, split, address), storage, options)
    urls = find_shards(address, split) if isinstance(address, str) else list(address)
    if not urls:
        raise ShardError("an empty list of shards")
    return _open_cached(tuple(urls), None, storage, options)


def _chosen(info: Info, split: str | None, address: str) -> SplitInfo:
    if split is None and len(info.splits) == 1:
        return next(iter(info.splits.values()))
    if split not in info.splits:
        raise MissingShards(f"no split {split!r} at {address!r}; there are {sorted(info.splits)}")
    return info.splits[split]


def _open_listed(
    folder: str, info: Info, split: SplitInfo, storage: Storage, options: IndexOptions
) -> Shards:
    """Open the shards that `_info.json` lists, with our table if there is one next to it."""
    urls = tuple(join(folder, name) for name in split.filenames)
    table = join(folder, index_name(split.name))
    if not exists(table):
        return _open_cached(urls, split, storage, options, info.classes)
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
    """Copy a remote index, of the version of this info, to a local file that can be mapped."""
    path = cache_path("index", table, repr(info))
    if not path.exists():
        with storage.open(table) as source, atomic_write(path) as target:
            target.write(source.read())
    return str(path)


def _open_cached(
    urls: tuple[str, ...],
    split: SplitInfo | None,
    storage: Storage,
    options: IndexOptions,
    classes: Sequence[str] = (),
) -> Shards:
    """Open shards by an index in the cache, made now if it is missing or a file has changed."""
    known = [(url, _stamp(url)) for url in urls]
    path = cache_path("rows", *map(str, known), *options.endings, str(VERSION))
    lengths = _kept_lengths(path)
    if lengths is None:
        work = partial(index_shard, storage=storage, endings=options.endings)
        title = "index" if options.progress else None
        tables = list(parallel_map(work, urls, options.workers, title))
        write_table(path, tables)
        lengths = tuple(len(table) for table in tables)
        with atomic_write(path.with_suffix(".json")) as file:
            file.write(json.dumps(lengths).encode())
    if split is not None:
        check_lengths(split, lengths)
    sums = () if split is None else tuple(split.sha256)
    return Shards(urls, lengths, str(path), tuple(classes), sums=sums, storage=storage)


def _kept_lengths(table: Path) -> tuple[int, ...] | None:
    """Read the lengths of the shards of an index in the cache; None if it is not whole."""
    try:
        lengths = tuple(map(int, json.loads(table.with_suffix(".json").read_text())))
        rows = np.load(table, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, OverflowError, RecursionError):
        return None
    return lengths if rows.shape == (sum(lengths),) and min(lengths, default=0) >= 0 else None


def check_lengths(split: SplitInfo, lengths: Sequence[int]) -> None:
    """Raise ShardError if a shard has not the number of samples that `_info.json` says."""
    for name, claimed, found in zip(split.filenames, split.shard_lengths, lengths, strict=True):
        if claimed != found:
            raise ShardError(f"_info.json says {claimed} samples for {name}, which has {found}")


def _stamp(url: str) -> str:
    """Tell a new version of a local file from the old; other files are known only by name."""
    if is_remote(url) or is_command(url):
        return ""
    try:
        status = os.stat(local_path(url))
    except OSError as error:
        raise ShardError(f"{url} cannot be read: {error.strerror}") from None
    return f"{status.st_size} {status.st_mtime_ns}"


def cache_path(kind: str, *parts: str) -> Path:
    """Return where the cache keeps a table that these texts identify."""
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return cache_folder() / "index" / f"{kind}-{digest}.npy"


def index_shard(url: str, storage: Storage, endings: Sequence[str]) -> NDArray[Any]:
    """Read the headers of a shard into rows of an index."""
    with storage.open(url) as file:
        return as_table(index_tar(file, url, endings))


def as_table(rows: Sequence[Row], checksums: Sequence[int] | None = None) -> NDArray[Any]:
    """Make rows of an index, with the CRC-32 sums of the samples if they are known."""
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
    """Write the rows of all shards as one .npy file, and return its SHA-256 sum.

    There is no pickle in it, so that reading it runs nothing.
    """
    with atomic_write(path) as file:
        np.lib.format.write_array(file, np.concatenate(tables), allow_pickle=False)
    return sha256_of(path)
