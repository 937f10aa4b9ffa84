"""Bad samples: named in a file, counted, tolerated up to a limit, then an error."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vit_rpe.files import atomic_write, read_regular
from vit_rpe.messages import shown

from ..errors import BadSample, ShardError

DEFAULT_BAD_LIMIT = 0.001
_HEAD = list(BadSample._fields)

Found = dict[tuple[str, str], BadSample]


class BadSamples:
    """A record of the bad samples of a set, each named once; `limit` is a fraction of all samples.

    With a path, the record is a CSV file (shard, key, reason). It is read back on resuming, and
    again after a process has added to it: so the limit holds for all processes together, from the
    beginning of the run.
    """

    def __init__(
        self, num_samples: int, limit: float = DEFAULT_BAD_LIMIT, path: str | Path | None = None
    ):
        if not 0 <= limit <= 1:
            raise ValueError(f"the limit of bad samples is a fraction from 0 to 1, got {limit}")
        self.num_samples, self.limit = num_samples, limit
        self.path = None if path is None else Path(path)
        self.found: Found = {} if self.path is None else _read(self.path)

    def __len__(self) -> int:
        return len(self.found)

    def add(self, samples: Iterable[BadSample]) -> None:
        """Record bad samples; raise ShardError if there are too many by now."""
        met = {(bad.shard, bad.key): bad for bad in samples}
        new = [bad for name, bad in met.items() if name not in self.found]
        if new and self.path is not None:
            _append(self.path, new)
            self.found = _read(self.path)
        self.found.update({(bad.shard, bad.key): bad for bad in new})
        if met:
            self.check()

    def review(self, is_bad: Callable[[BadSample], bool]) -> None:
        """If there are too many, remove those that were repaired; raise if there still are."""
        if not self._exceeded(len(self)):
            return
        kept = {name: bad for name, bad in self.found.items() if is_bad(bad)}
        if self.path is not None and len(kept) < len(self):
            with atomic_write(self.path) as file:
                file.write(_lines([_HEAD, *kept.values()]))
        self.found = kept
        self.check()

    def check(self, count: int | None = None) -> None:
        """Raise ShardError if this many bad samples, or those found so far, are too many."""
        count = len(self) if count is None else count
        if self._exceeded(count):
            raise ShardError(
                f"{count} of {self.num_samples} samples are bad, the limit is {self.limit:.2%} "
                f"({self.limit * self.num_samples:g}){self._last()}"
            )

    def _exceeded(self, count: int) -> bool:
        return count > self.limit * self.num_samples

    def _last(self) -> str:
        if not self.found:
            return ""
        last = list(self.found.values())[-1]
        listed = f"; all are in {self.path}" if self.path is not None else ""
        return f"; the last is {shown(last.key)} in {last.shard}: {last.reason}{listed}"


def _read(path: Path) -> Found:
    try:
        text = read_regular(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ShardError(f"{path} cannot be read: {error}") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    found: Found = {}
    try:
        for number, row in enumerate(rows):
            if len(row) != len(_HEAD) or (number == 0 and row != _HEAD):
                raise ShardError(
                    f"{path}, line {rows.line_num}: a list of bad samples ({', '.join(_HEAD)}) was "
                    f"expected, got {shown(row)}"
                )
            found[row[0], row[1]] = BadSample(*row)
    except csv.Error as error:
        raise ShardError(f"{path}, after line {rows.line_num}: {error}") from None
    found.pop((_HEAD[0], _HEAD[1]), None)
    return found


def _append(path: Path, samples: list[BadSample]) -> None:
    """Append in one write, so that lines of several processes do not run into each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Iterable[str]] = [*samples]
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        rows.insert(0, _HEAD)
    except FileExistsError:
        pass
    with open(path, "ab", buffering=0) as file:
        file.write(_lines(rows))


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")
