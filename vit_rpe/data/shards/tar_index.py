"""The samples of one shard, from the headers of a tar file, without reading its images.

Members are grouped as webdataset does: the name up to the first dot of its last part is the key,
the rest says what the member is, and members of a sample follow each other. Only data and labels
are ever read. Everything else, a pickle above all, stays closed.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import IO, NamedTuple

from webdataset.tariterators import base_plus_ext

from vit_rpe.messages import cut, shown

from ..errors import ShardError
from .layout import LABEL_ENDINGS

NO_LABEL, WRONG_LABEL = -1, -2
NO_DATA = -1  # as the size of a sample without an image
_META = re.compile(r"__[^/]*__($|/)")  # webdataset's own members, which it skips
_LONGEST_LABEL = 32
_LONGEST_KEY = 1000  # in bytes: the index has room for the longest one in every row
_LARGEST = 1 << 50  # of a shard, in bytes
_BLOCK = tarfile.BLOCKSIZE


class Row(NamedTuple):
    """Where the data of a sample are in its shard, and its label."""

    key: str
    offset: int
    size: int
    label: int


class _Member(NamedTuple):
    key: str
    ending: str
    offset: int
    size: int


def index_tar(file: IO[bytes], name: str, endings: Sequence[str]) -> list[Row]:
    """List the samples of a shard; ShardError if it is damaged or ambiguous."""
    rows = [_row(file, name, group, endings) for group in _groups(file, name)]
    if not rows:
        raise ShardError(f"{name} is empty: no sample in it")
    seen: set[str] = set()
    for row in rows:
        if row.key in seen:
            raise ShardError(f"{name} has two samples with the key {row.key!r}")
        seen.add(row.key)
    return rows


def _groups(file: IO[bytes], name: str) -> Iterator[list[_Member]]:
    for _, group in groupby(_members(file, name), key=lambda member: member.key):
        yield list(group)


def _members(file: IO[bytes], name: str) -> Iterator[_Member]:
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                _check_size(member, name)
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                key, ending = base_plus_ext(member.name)
                if not member.isreg() or _META.match(member.name) or not key or not ending:
                    continue
                _check_name(member.name, name)
                yield _Member(key, ending.lower(), member.offset_data, member.size)
    except ShardError:
        raise
    # tarfile says TarError; its arithmetic with odd numbers in a header says all the others
    except (tarfile.TarError, ValueError, ArithmeticError, IndexError, TypeError) as error:
        raise ShardError(
            f"{name} is not a whole, uncompressed tar file: {cut(error)} (after byte {end})"
        ) from None
    _check_end(file, name, end)


def _check_end(file: IO[bytes], name: str, end: int) -> None:
    """Raise ShardError if there is no end mark: tarfile takes a damaged header for the end."""
    file.seek(end)
    mark = file.read(_BLOCK)
    if len(mark) < _BLOCK or any(mark):
        raise ShardError(f"{name} has no end mark at byte {end}: it is cut off or damaged there")


def _check_size(member: tarfile.TarInfo, shard: str) -> None:
    """Refuse members of an impossible size, and sparse ones, which are not in one piece."""
    if not 0 <= member.size <= _LARGEST or member.issparse():
        what = (
            "stored in pieces (sparse)" if member.issparse() else f"of {shown(member.size)} bytes"
        )
        raise ShardError(f"{shard} has the member {shown(member.name)}, {what}")


def _check_name(member: str, shard: str) -> None:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise ShardError(f"{shard} has the member {shown(member)}, a path out of its folder")
    if len(member.encode("utf-8", "surrogateescape")) > _LONGEST_KEY:
        raise ShardError(
            f"{shard} has the member {shown(member)}: a name of {len(member)} characters, at most "
            f"{_LONGEST_KEY} bytes are read"
        )


def _row(file: IO[bytes], name: str, group: list[_Member], endings: Sequence[str]) -> Row:
    members = {member.ending: member for member in group}
    if len(members) < len(group):
        raise ShardError(f"{name} has two members of one kind for the key {group[0].key!r}")
    data = next((members[ending] for ending in endings if ending in members), None)
    label = next((members[ending] for ending in LABEL_ENDINGS if ending in members), None)
    offset, size = (data.offset, data.size) if data else (0, NO_DATA)
    return Row(group[0].key, offset, size, NO_LABEL if label is None else _label(file, label))


def _label(file: IO[bytes], member: _Member) -> int:
    back = file.tell()
    file.seek(member.offset)
    text = file.read(min(member.size, _LONGEST_LABEL + 1))
    file.seek(back)
    wrong = len(text) > _LONGEST_LABEL or not re.fullmatch(rb"\s*\d{1,9}\s*", text)
    return WRONG_LABEL if wrong else int(text)
