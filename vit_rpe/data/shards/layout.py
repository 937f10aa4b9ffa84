"""Names and files of a set of shards: tar members, `_info.json` in timm's layout, addresses.

folder/_info.json            {splits: {train: {name, num_samples, filenames, shard_lengths}}}
folder/_index-train.npy      where each sample is (index.py); made again if it is missing
folder/train-00000.tar       00000012_cat.jpg, 00000012_cat.cls, ...
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from webdataset.shardlists import expand_urls

from vit_rpe.files import atomic_write
from vit_rpe.messages import cut, shown

from ..errors import MissingShards, ShardError
from .storage import (
    Storage,
    file_system,
    is_command,
    is_remote,
    join,
    local_path,
)

INFO_NAMES = ("_info.json", "info.json")
LABEL_ENDINGS = ("cls", "class", "label")
LARGEST_INFO = 1 << 28  # in bytes; 10,000 shards need some two million
LARGEST_LABEL = 999_999_999  # nine digits: the index has four bytes for it


@dataclass(frozen=True)
class SplitInfo:
    """One split in `_info.json`. The second half of the fields is ours; timm ignores it."""

    name: str
    num_samples: int
    filenames: list[str]
    shard_lengths: list[int]
    shard_bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    index_sha256: str = ""
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Info:
    """The content of `_info.json`."""

    splits: dict[str, SplitInfo]
    classes: list[str] = field(default_factory=list)

    def write(self, folder: str) -> None:
        """Write `_info.json` into a folder."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"
        with atomic_write(join(folder, INFO_NAMES[0])) as file:
            file.write(text.encode())


def index_name(split: str) -> str:
    """Name the index of a split."""
    return f"_index-{split}.npy"


def read_info(folder: str, storage: Storage | None = None) -> Info | None:
    """Read the `_info.json` of a folder; None if there is none."""
    storage = storage or Storage()
    for name in INFO_NAMES:
        url = join(folder, name)
        if exists(url):
            with storage.open(url) as file:
                return parse_info(file.read(LARGEST_INFO), url)
    return None


def parse_info(text: bytes, url: str) -> Info:
    """Read `_info.json`, which others may have written; ShardError if it contradicts itself."""
    try:
        data = json.loads(text)
        splits = {name: _split(name, split) for name, split in data["splits"].items()}
        info = Info(splits, [str(name) for name in data.get("classes", [])])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ShardError(f"{url} is not in timm's layout: {cut(detail)}") from None
    except RecursionError:
        raise ShardError(f"{url} is not in timm's layout: it is nested too deeply") from None
    for split in info.splits.values():
        _check_split(split, url)
    return info


def _split(name: str, data: dict[str, Any]) -> SplitInfo:
    return SplitInfo(
        name=str(data.get("name", name)),
        num_samples=int(data["num_samples"]),
        filenames=[str(file) for file in data["filenames"]],
        shard_lengths=[int(length) for length in data["shard_lengths"]],
        shard_bytes=[int(size) for size in data.get("shard_bytes", [])],
        sha256=[str(digest) for digest in data.get("sha256", [])],
        index_sha256=str(data.get("index_sha256", "")),
        made=dict(data.get("made", {})),
    )


def _check_split(split: SplitInfo, url: str) -> None:
    files, lengths = len(split.filenames), len(split.shard_lengths)
    name = shown(split.name)
    if files != lengths or not files:
        raise ShardError(f"{url}: split {name} has {files} filenames and {lengths} shard_lengths")
    if sum(split.shard_lengths) != split.num_samples or min(split.shard_lengths) < 0:
        raise ShardError(
            f"{url}: split {name} has num_samples {shown(split.num_samples)}, but its "
            f"shard_lengths sum to {shown(sum(split.shard_lengths))}"
        )
    for listed in (split.shard_bytes, split.sha256):
        if listed and len(listed) != files:
            raise ShardError(
                f"{url}: split {name} has {files} filenames, but {len(listed)} sizes or sums"
            )
    for file in (*split.filenames, index_name(split.name)):
        if not _is_within(file):
            raise ShardError(
                f"{url}: split {name} names {shown(file)}; a name of a file in its folder was "
                "expected, not a command, an address or a path out of it"
            )


def _is_within(name: str) -> bool:
    """Tell whether a name in `_info.json` is that of a file in its folder, or below it."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and bool(name) and not re.search(r"\0|:/|::|^pipe:", name)


def exists(url: str) -> bool:
    """Tell whether there is a file at an address."""
    fs, path = file_system(url)
    return bool(fs.exists(path))


def is_pattern(address: str) -> bool:
    """Tell whether an address names shards, `x-{000..146}.tar`, and not a folder of them."""
    return is_command(address) or re.search(r"\.tar($|[.}:?])|[{*]", address) is not None


def find_shards(address: str, split: str | None) -> list[str]:
    """Find the shards that an address means, where no `_info.json` lists them."""
    if is_pattern(address):
        found = [url for each in expand_urls(address) for url in _glob(each)]
    else:
        found = _glob(join(address, "**/*.tar"))
        if split is not None:
            found = _of_split(address, found, split)
    if not found:
        raise MissingShards(f"no shards (.tar) at {address!r}")
    return found


def _glob(url: str) -> list[str]:
    if is_command(url) or "*" not in url:
        return [url]
    fs, path = file_system(url)
    names = sorted(str(name) for name in fs.glob(path))
    return [fs.unstrip_protocol(name) for name in names] if is_remote(url) else names


def _of_split(address: str, urls: list[str], split: str) -> list[str]:
    """Choose shards whose name or folder has the split as a word: `imagenet1k-train-0001.tar`."""
    word = re.compile(rf"(^|[^a-z]){re.escape(split)}([^a-z]|$)", re.IGNORECASE)
    names = [url.removeprefix(local_path(address)).removeprefix(address) for url in urls]
    found = [url for url, name in zip(urls, names, strict=True) if word.search(name)]
    if urls and not found:
        raise MissingShards(
            f"no shard at {address!r} has the split {split!r} in its name; there are "
            f"{', '.join(name.lstrip('/') for name in names[:3])}, ..."
        )
    return found
