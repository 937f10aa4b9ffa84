"""From images or videos to shards: in parallel, resumable, the same bytes every time, verified.

Each shard is made by itself, under a temporary name, read back and compared with what went in, and
only then gets its name. A record beside it (sums, bad images) says so until all shards are done;
who starts again keeps the shards that have a record and makes the others.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from numpy.typing import NDArray
from webdataset.writer import TarWriter

from vit_rpe.files import atomic_write, sha256_of
from vit_rpe.messages import cut, shown

from ..errors import NO_MEMORY, BadData, BadSample, ShardError
from ..lock import FolderLock
from ..parallel import in_processes
from ..seeding import Purpose, shuffled
from ..shards.bad_samples import DEFAULT_LIMIT, BadSamples
from ..shards.index import as_table, write_table
from ..shards.layout import LARGEST_LABEL, Info, SplitInfo, index_name, read_info
from ..shards.storage import Storage
from ..shards.tar_index import Row, scan
from .preparation import Preparation, Recipe
from .sources import Source

Record = TypeVar("Record", dict[str, Any], list[Any])


class Made(NamedTuple):
    """A finished shard."""

    table: NDArray[Any]
    size: int
    sha256: str
    bad: list[BadSample]


def make_shards(
    source: Source,
    folder: str | Path,
    split: str,
    recipe: Preparation | None = None,
    *,
    workers: int = 1,
    max_bad: float = DEFAULT_LIMIT,
    progress: bool = False,
    wait: float = 0.0,
) -> SplitInfo:
    """Write one split: shards, index and its part of `_info.json`. Call it again to go on.

    One maker works in a folder at a time; another waits for so many seconds, then FolderBusy.
    """
    recipe = recipe or Recipe()
    if len(source) == 0:
        raise ShardError(f"no samples for the split {split!r}")
    if not re.fullmatch(r"[A-Za-z0-9_]+", split):
        raise ValueError(f"a split is named by letters, digits and _, got {split!r}")
    with FolderLock(folder, what="maker of shards", wait=wait):
        return _make(source, Path(folder), split, recipe, workers, max_bad, progress)


def _make(
    source: Source,
    folder: Path,
    split: str,
    recipe: Preparation,
    workers: int,
    max_bad: float,
    progress: bool,
) -> SplitInfo:
    made = {"source": source.fingerprint(), "samples": len(source), **asdict(recipe)}  # pyright: ignore
    count = -(-len(source) // recipe.samples_per_shard)
    names = [f"{split}-{i:05d}.tar" for i in range(count)]
    record = _claim(folder, split, made, source.classes, names)
    work = partial(_make_one, source=source, folder=folder, names=names, recipe=recipe)
    bad = BadSamples(len(source), max_bad, _bad_path(folder, split))
    shards: list[Made] = []
    for shard in in_processes(work, range(count), workers, split if progress else None):
        bad.add(shard.bad)
        shards.append(shard)
    if not any(len(shard.table) for shard in shards):
        raise ShardError(f"no sample of the split {split!r} is good; they are named in {bad.path}")
    kept = [(name, shard) for name, shard in zip(names, shards, strict=True) if len(shard.table)]
    names, shards = [name for name, _ in kept], [shard for _, shard in kept]
    digest = write_table(folder / index_name(split), [shard.table for shard in shards])
    info = replace(_split_info(split, names, shards, made), index_sha256=digest)
    _publish(folder, info, source.classes)
    for path in (record, *(_record(folder / name) for name in names)):
        path.unlink(missing_ok=True)
    return info


def _split_info(
    split: str, names: list[str], shards: list[Made], made: dict[str, Any]
) -> SplitInfo:
    lengths = [len(shard.table) for shard in shards]
    return SplitInfo(
        name=split,
        num_samples=sum(lengths),
        filenames=names,
        shard_lengths=lengths,
        shard_bytes=[shard.size for shard in shards],
        sha256=[shard.sha256 for shard in shards],
        made=made,
    )


def _claim(
    folder: Path, split: str, made: dict[str, Any], classes: Sequence[str], names: Sequence[str]
) -> Path:
    """A folder holds a split of one source and one recipe; other shards are never written over."""
    record = folder / f".{split}.making.json"
    info = read_info(str(folder), Storage())
    begun = record.exists()
    if info is not None and split in info.splits:
        before, known = info.splits[split].made, [*info.splits[split].filenames, index_name(split)]
    else:
        before, known = _read_record(record, dict) if begun else made, []
    if not begun:
        _check_free(folder, [*names, index_name(split)], known)
    changed = [name for name in made if before.get(name) != made[name]]
    if changed:
        name = changed[0]
        raise ShardError(
            f"{folder} has the split {split!r} with {name} {shown(before.get(name))}, now it is "
            f"{shown(made[name])}: remove that split or take another folder"
        )
    if info is not None and info.splits and list(classes) != list(info.classes):
        raise ShardError(f"{folder} has shards of other classes than those of the split {split!r}")
    if not begun and not known:
        _forget_bad(_bad_path(folder, split))
    _remove_parts(folder, split)
    with atomic_write(record) as file:
        file.write(json.dumps(made).encode())
    return record


def _remove_parts(folder: Path, split: str) -> None:
    """Remove what a maker that was killed had half written."""
    shard = rf"{split}-\d+\.tar"
    ours = rf"{shard}|\.{shard}\.json|\.{split}\.making\.json|_index-{split}\.npy|_info\.json"
    for path in folder.glob(".*.part"):
        if re.fullmatch(rf"\.({ours})\.\d+\.part", path.name):
            path.unlink()


def _check_free(folder: Path, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known and os.path.lexists(folder / name):
            raise ShardError(
                f"{folder / name} is there, and neither _info.json nor a record of this program "
                "names it: move it, or take another folder"
            )


def _bad_path(folder: Path, split: str) -> Path:
    return folder / f"bad_samples-{split}.csv"


def _forget_bad(path: Path) -> None:
    """Remove the list of bad samples of shards that are there no more; another file is refused."""
    if BadSamples(0, 1, path).found:
        path.unlink()


def _read_record(path: Path, kind: type[Record]) -> Record:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ShardError(f"{path} is no record of this program: {error}: remove it") from None
    if not isinstance(record, kind):
        raise ShardError(f"{path} is no record of this program: {shown(record)}: remove it")
    return record


def _publish(folder: Path, split: SplitInfo, classes: Sequence[str]) -> None:
    info = read_info(str(folder), Storage()) or Info({})
    replace(info, splits={**info.splits, split.name: split}, classes=list(classes)).write(
        str(folder)
    )


# --- one shard ---------------------------------------------------------------------------------


def _make_one(
    i: int, source: Source, folder: Path, names: Sequence[str], recipe: Preparation
) -> Made:
    path = folder / names[i]
    found = _finished(path, recipe.endings)
    if found is not None:
        return found
    order, size = _order(len(source), recipe.seed), recipe.samples_per_shard
    bad: list[BadSample] = []
    with atomic_write(path) as file:
        written = _write(file, source, order[i * size : (i + 1) * size], recipe, path.name, bad)
        file.flush()
        if written:
            table = _read_back(Path(file.name), path.name, written, recipe.endings)
            done = Made(table, os.path.getsize(file.name), sha256_of(file.name), bad)
            with atomic_write(_record(path)) as record:
                record.write(json.dumps([done.sha256, bad]).encode())
            return done
    path.unlink()  # a shard of nothing but bad samples would be empty, and refused by readers
    return Made(as_table([]), 0, "", bad)


@lru_cache(maxsize=1)
def _order(n: int, seed: int | None) -> Sequence[int]:
    return range(n) if seed is None else shuffled(n, Purpose.MAKER, seed).tolist()


def _write(
    file: Any,
    source: Source,
    numbers: Sequence[int],
    recipe: Preparation,
    shard: str,
    bad: list[BadSample],
) -> list[tuple[str, int, int]]:
    """Samples into a tar file; gives key, label and checksum of each. Bad items are left out."""
    written = []
    # fixed times and owners: the same samples make the same file
    with TarWriter(file, encoder=False, mtime=0) as tar:
        for number in numbers:
            key = f"{number:08d}"
            try:
                item = source.item(number)
                key = _key(number, item.name)
                parts = recipe.prepare(item.data, item.ending)
            except (BadData, OSError, MemoryError) as error:
                bad.append(BadSample(shard, key, cut(error) or NO_MEMORY))
                continue
            if not 0 <= item.label <= LARGEST_LABEL:
                raise ShardError(f"labels are from 0 to {LARGEST_LABEL}, got {item.label}: {key}")
            label = str(item.label).encode()
            for suffix, ending, data in parts:
                tar.write({"__key__": key + suffix, ending: data, "cls": label})
                written.append((key + suffix, item.label, zlib.crc32(data)))
    return written


def _key(number: int, name: str) -> str:
    """Unique by the number in the source; the name is for people. A dot would end the key."""
    return f"{number:08d}" + "_" * bool(name) + re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]


def _read_back(
    path: Path, name: str, written: list[tuple[str, int, int]], endings: Sequence[str]
) -> NDArray[Any]:
    """The rows of a new shard, if what is on disk is what was meant to be written."""
    with open(path, "rb") as file:
        rows: list[Row] = scan(file, name, endings)
        for row, (key, label, checksum) in zip(rows, written, strict=True):
            if (row.key, row.label, _checksum(file, row)) != (key, label, checksum):
                raise ShardError(f"{path}: {key!r} on disk differs from what was written")
    return as_table(rows, [checksum for *_, checksum in written])


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _finished(path: Path, endings: Sequence[str]) -> Made | None:
    """A shard that an earlier run finished: by its record, or by `_info.json`."""
    if not path.exists():
        return None
    if _record(path).exists():
        sha256, bad = _read_record(_record(path), list)
    else:
        info = read_info(str(path.parent), Storage())
        known = chain.from_iterable(
            zip(split.filenames, split.sha256, strict=True)
            for split in (info.splits.values() if info else ())
        )
        sha256, bad = dict(known).get(path.name), []
    if sha256 is None or sha256_of(path) != sha256:
        return None
    with open(path, "rb") as file:
        rows = scan(file, path.name, endings)
        table = as_table(rows, [_checksum(file, row) for row in rows])
    return Made(table, path.stat().st_size, sha256, [BadSample(*each) for each in bad])


def _checksum(file: IO[bytes], row: Row) -> int:
    file.seek(row.offset)
    return zlib.crc32(file.read(row.size))
