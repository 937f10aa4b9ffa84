"""One shard: written under a temporary name, read back and compared, then given its name."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from numpy.typing import NDArray
from webdataset.writer import TarWriter

from vit_rpe.files import atomic_write, sha256_of
from vit_rpe.messages import cut, shown

from ..errors import NO_MEMORY, BadData, BadSample, ShardError
from ..seeding import Purpose, shuffled
from ..shards.index import as_table
from ..shards.layout import LARGEST_LABEL, read_info
from ..shards.tar_index import Row, index_tar
from .preparation import Preparation
from .sources import Source

Record = TypeVar("Record", dict[str, Any], list[Any])


class WrittenShard(NamedTuple):
    """A finished shard: its rows of the index, what tells it from others, what was left out."""

    table: NDArray[Any]
    size: int
    sha256: str
    bad: list[BadSample]


class WrittenSample(NamedTuple):
    """A sample as it went into a shard."""

    key: str
    label: int
    crc: int


def write_shard(
    number: int, source: Source, folder: Path, names: Sequence[str], preparation: Preparation
) -> WrittenShard:
    """Write a shard of a split, unless an earlier run has finished it."""
    path = folder / names[number]
    found = _finished(path, preparation.endings)
    if found is not None:
        return found
    size = preparation.samples_per_shard
    numbers = _order(len(source), preparation.seed)[number * size : (number + 1) * size]
    bad: list[BadSample] = []
    with atomic_write(path) as file:
        written = _write(file, source, numbers, preparation, path.name, bad)
        file.flush()
        if written:
            table = _read_back(Path(file.name), path.name, written, preparation.endings)
            done = WrittenShard(table, os.path.getsize(file.name), sha256_of(file.name), bad)
            with atomic_write(record_path(path)) as record:
                record.write(json.dumps([done.sha256, bad]).encode())
            return done
    path.unlink()  # a shard of nothing but bad samples would be empty, and refused by readers
    return WrittenShard(as_table([]), 0, "", bad)


@lru_cache(maxsize=1)
def _order(n: int, seed: int | None) -> Sequence[int]:
    return range(n) if seed is None else shuffled(n, Purpose.MAKER, seed).tolist()


def _write(
    file: Any,
    source: Source,
    numbers: Sequence[int],
    preparation: Preparation,
    shard: str,
    bad: list[BadSample],
) -> list[WrittenSample]:
    """Write samples into a tar file; bad items are left out and added to `bad`."""
    written = []
    # fixed times and owners: the same samples make the same file
    with TarWriter(file, encoder=False, mtime=0) as tar:
        for number in numbers:
            key = f"{number:08d}"
            try:
                item = source.item(number)
                key = _key(number, item.name)
                parts = preparation.prepare(item.data, item.ending)
            except (BadData, OSError, MemoryError) as error:
                bad.append(BadSample(shard, key, cut(error) or NO_MEMORY))
                continue
            if not 0 <= item.label <= LARGEST_LABEL:
                raise ShardError(f"labels are from 0 to {LARGEST_LABEL}, got {item.label}: {key}")
            label = str(item.label).encode()
            for suffix, ending, data in parts:
                tar.write({"__key__": key + suffix, ending: data, "cls": label})
                written.append(WrittenSample(key + suffix, item.label, zlib.crc32(data)))
    return written


def _key(number: int, name: str) -> str:
    """Make a key: unique by the number in the source, with a name for people and without a dot."""
    return f"{number:08d}" + "_" * bool(name) + re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]


def _read_back(
    path: Path, name: str, written: list[WrittenSample], endings: Sequence[str]
) -> NDArray[Any]:
    """Index a new shard; ShardError if what is on disk is not what was meant to be written."""
    with open(path, "rb") as file:
        rows = index_tar(file, name, endings)
        for row, sample in zip(rows, written, strict=True):
            if WrittenSample(row.key, row.label, _checksum(file, row)) != sample:
                raise ShardError(f"{path}: {sample.key!r} on disk differs from what was written")
    return as_table(rows, [sample.crc for sample in written])


def _finished(path: Path, endings: Sequence[str]) -> WrittenShard | None:
    """Find a shard that an earlier run finished, by its record or by `_info.json`."""
    if not path.exists():
        return None
    if record_path(path).exists():
        sha256, bad = read_record(record_path(path), list)
    else:
        info = read_info(str(path.parent))
        known = chain.from_iterable(
            zip(split.filenames, split.sha256, strict=True)
            for split in (info.splits.values() if info else ())
        )
        sha256, bad = dict(known).get(path.name), []
    if sha256 is None or sha256_of(path) != sha256:
        return None
    with open(path, "rb") as file:
        rows = index_tar(file, path.name, endings)
        table = as_table(rows, [_checksum(file, row) for row in rows])
    return WrittenShard(table, path.stat().st_size, sha256, [BadSample(*each) for each in bad])


def _checksum(file: IO[bytes], row: Row) -> int:
    file.seek(row.offset)
    return zlib.crc32(file.read(row.size))


def record_path(shard: Path) -> Path:
    """Name the record of a finished shard, which is kept until all shards are finished."""
    return shard.with_name(f".{shard.name}.json")


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a record of this program; ShardError if the file is something else."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ShardError(f"{path} is no record of this program: {error}: remove it") from None
    if not isinstance(record, kind):
        raise ShardError(f"{path} is no record of this program: {shown(record)}: remove it")
    return record
