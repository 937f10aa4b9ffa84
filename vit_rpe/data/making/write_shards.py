"""From images or videos to shards: in parallel, resumable, the same bytes every time, verified.

Each shard is made by itself (shard_file.py), and a record next to it says that it is whole until
all shards are done; a rerun keeps the shards that have a record and makes the rest.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vit_rpe.files import atomic_write
from vit_rpe.messages import shown

from ..errors import ShardError
from ..lock import FolderLock
from ..parallel import parallel_map
from ..shards.bad_samples import DEFAULT_BAD_LIMIT, BadSamples
from ..shards.index import write_table
from ..shards.layout import Info, SplitInfo, index_name, read_info
from .preparation import ImagePreparation, Preparation
from .shard_file import WrittenShard, read_record, record_path, write_shard
from .sources import Source


def make_shards(
    source: Source,
    folder: str | Path,
    split: str,
    preparation: Preparation | None = None,
    *,
    workers: int = 1,
    max_bad: float = DEFAULT_BAD_LIMIT,
    progress: bool = False,
    wait: float = 0.0,
) -> SplitInfo:
    """Write one split: shards, index and its part of `_info.json`. Call it again to resume.

    One process makes shards in a folder at a time; another waits for `wait` seconds, then raises
    FolderBusy.
    """
    preparation = preparation or ImagePreparation()
    if len(source) == 0:
        raise ShardError(f"no samples for the split {split!r}")
    if not re.fullmatch(r"[A-Za-z0-9_]+", split):
        raise ValueError(f"a split is named by letters, digits and _, got {split!r}")
    with FolderLock(folder, what="maker of shards", wait=wait):
        return _make(source, Path(folder), split, preparation, workers, max_bad, progress)


def _make(
    source: Source,
    folder: Path,
    split: str,
    preparation: Preparation,
    workers: int,
    max_bad: float,
    progress: bool,
) -> SplitInfo:
    made = {"source": source.fingerprint(), "samples": len(source), **preparation.record()}
    count = -(-len(source) // preparation.samples_per_shard)
    names = [f"{split}-{i:05d}.tar" for i in range(count)]
    record = _claim(folder, split, made, source.classes, names)
    work = partial(write_shard, source=source, folder=folder, names=names, preparation=preparation)
    bad = BadSamples(len(source), max_bad, _bad_path(folder, split))
    shards: list[WrittenShard] = []
    for shard in parallel_map(work, range(count), workers, split if progress else None):
        bad.add(shard.bad)
        shards.append(shard)
    if not any(len(shard.table) for shard in shards):
        raise ShardError(f"no sample of the split {split!r} is good; they are named in {bad.path}")
    kept = [(name, shard) for name, shard in zip(names, shards, strict=True) if len(shard.table)]
    names, shards = [name for name, _ in kept], [shard for _, shard in kept]
    digest = write_table(folder / index_name(split), [shard.table for shard in shards])
    info = replace(_split_info(split, names, shards, made), index_sha256=digest)
    _publish(folder, info, source.classes)
    for path in (record, *(record_path(folder / name) for name in names)):
        path.unlink(missing_ok=True)
    return info


def _split_info(
    split: str, names: list[str], shards: list[WrittenShard], made: dict[str, Any]
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
    """Write down what a split will be made of; ShardError if other shards are in the way."""
    record = folder / f".{split}.making.json"
    info = read_info(str(folder))
    begun = record.exists()
    if info is not None and split in info.splits:
        before, known = info.splits[split].made, [*info.splits[split].filenames, index_name(split)]
    else:
        before, known = read_record(record, dict) if begun else made, []
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
    """Remove what a process that was killed had half written."""
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
    """Remove the list of bad samples of shards that were removed; another file is refused."""
    if BadSamples(0, 1, path).found:
        path.unlink()


def _publish(folder: Path, split: SplitInfo, classes: Sequence[str]) -> None:
    info = read_info(str(folder)) or Info({})
    replace(info, splits={**info.splits, split.name: split}, classes=list(classes)).write(
        str(folder)
    )
