"""Bad samples: named in a file, counted, tolerated up to a limit, then a clear stop."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path

from .errors import BadSample, ShardError

DEFAULT_LIMIT = 0.001


class BadSamples:
    """A record of the bad samples of a set, each named once; `limit` is a share of all samples.

    With a path, the record is a CSV file (shard, key, reason) that is read back on resuming. Every
    process counts what it met itself; lines of several processes can go to one file.
    """

    def __init__(
        self, num_samples: int, limit: float = DEFAULT_LIMIT, path: str | Path | None = None
    ):
        if not 0 <= limit <= 1:
            raise ValueError(f"the limit of bad samples is a share from 0 to 1, got {limit}")
        self.num_samples, self.limit = num_samples, limit
        self.path = None if path is None else Path(path)
        self.found: dict[tuple[str, str], BadSample] = {}
        if self.path is not None and self.path.exists():
            with open(self.path, newline="") as file:
                self.found = {(row[0], row[1]): BadSample(*row) for row in csv.reader(file)}
            self.found.pop(("shard", "key"), None)  # the header

    def __len__(self) -> int:
        return len(self.found)

    def add(self, samples: Iterable[BadSample]) -> None:
        """Take note of bad samples; raise ShardError when there are too many by now."""
        new = [bad for bad in samples if (bad.shard, bad.key) not in self.found]
        if not new:
            return
        self.found.update({(bad.shard, bad.key): bad for bad in new})
        if self.path is not None:
            _append(self.path, new)
        if len(self) > self.limit * self.num_samples:
            raise ShardError(self._message(new[-1]))

    def _message(self, last: BadSample) -> str:
        listed = f"; all are in {self.path}" if self.path is not None else ""
        return (
            f"{len(self)} of {self.num_samples} samples are bad, the limit is {self.limit:.2%} "
            f"({self.limit * self.num_samples:g}); the last is {last.key!r} in {last.shard}: "
            f"{last.reason}{listed}"
        )


def _append(path: Path, samples: list[BadSample]) -> None:
    """In one write, so that lines of several processes do not run into each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        samples = [BadSample(*BadSample._fields), *samples]
    except FileExistsError:
        pass
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(samples)
    with open(path, "ab", buffering=0) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))
