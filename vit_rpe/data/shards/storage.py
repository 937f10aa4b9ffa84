"""Bytes from shards: local files, any fsspec address, and commands only where they are allowed."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from filelock import FileLock
from fsspec.core import url_to_fs
from webdataset.gopen import gopen

from vit_rpe.files import atomic_write, cache_folder, open_regular
from vit_rpe.messages import cut, shown

from ..errors import ShardError

T = TypeVar("T")

# Of fsspec's file systems those that only fetch bytes. Others run commands, read one file by what
# another says (reference), or reach into this machine.
PROTOCOLS = (
    *("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss"),
    *("hf", "hdfs", "webhdfs", "ftp", "sftp", "ssh", "memory"),
)

TRIES = 4  # of a remote read; a network that fails for longer is not the fault of a sample
_FINAL = (FileNotFoundError, PermissionError, ValueError, TypeError)  # not worth another try
OPEN_FILES = 128


class Span(NamedTuple):
    """Some bytes of a file."""

    url: str
    offset: int
    size: int


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def is_command(url: str) -> bool:
    return url.startswith("pipe:")


def local_path(url: str) -> str:
    return url.removeprefix("file://")


def check_address(url: str) -> None:
    """Raise ShardError for what cannot be a name, where Python raises all kinds of errors."""
    if "\0" in url or any("\ud800" <= letter < "\udc80" for letter in url):
        raise ShardError(f"{shown(url)} is no address: it has a NUL or half a character in it")


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of an address and the path there; ShardError if not allowed."""
    if not is_remote(url):
        return url_to_fs(local_path(url))
    protocol = url.partition("://")[0]
    if protocol not in PROTOCOLS or "::" in url:
        raise ShardError(
            f"{shown(url)} is no address that shards are read from: it begins with none of "
            f"{', '.join(PROTOCOLS)}, or is a chain (::)"
        )
    return url_to_fs(url)


def join(folder: str, name: str) -> str:
    """Join a folder and a file name; a complete address is returned as it is."""
    if is_remote(name) or is_command(name) or os.path.isabs(name):
        return name
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)


@dataclass
class Storage:
    """Read parts of shards. `cache` is a local folder that keeps whole remote shards.

    `allow_pipe` lets an address such as `pipe:zcat x.tar.gz` run its command: only ever set it from
    the command line of the user, never from a file.
    """

    cache: str | None = None
    allow_pipe: bool = False

    def __post_init__(self) -> None:
        self._files: OrderedDict[str, int] = OrderedDict()

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Read the bytes of each span; fewer than asked for if the file ends before."""
        local = [self._local(span.url) for span in spans]
        remote = [span for span, path in zip(spans, local, strict=True) if path is None]
        fetched = iter(_fetch(remote))
        return [
            next(fetched) if path is None else self._read_local(path, span)
            for span, path in zip(spans, local, strict=True)
        ]

    def open(self, url: str) -> IO[bytes]:
        """Open a whole shard, to read it from its beginning."""
        path = self._local(url)
        if path is not None:
            return _with_url(url, lambda: open_regular(path))
        fs, name = file_system(url)
        return _with_retries(url, lambda: fs.open(name, "rb"))

    def size(self, url: str) -> int:
        """Return the size of a shard in bytes."""
        path = self._local(url)
        if path is not None:
            return _with_url(url, lambda: os.stat(path).st_size)
        fs, name = file_system(url)
        return int(_with_retries(url, lambda: fs.size(name)))

    def _local(self, url: str) -> str | None:
        """Return a local file with the bytes of a shard, fetched into the cache if there is one."""
        if is_command(url):
            if not self.allow_pipe:
                raise ShardError(
                    f"{url!r} is a command, and commands run only if allowed on the command line "
                    "(--allow-pipe)"
                )
            return self._cached(url, self.cache or str(cache_folder() / "shards"))
        if not is_remote(url):
            return local_path(url)
        return self._cached(url, self.cache) if self.cache else None

    def _cached(self, url: str, folder: str) -> str:
        name = hashlib.sha256(url.encode()).hexdigest()[:16] + "-" + Path(url).name[-80:]
        path = Path(folder) / name.replace(" ", "_")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                if not path.exists():
                    _with_retries(url, lambda: _download(url, path))
        return str(path)

    def _read_local(self, path: str, span: Span) -> bytes:
        return _with_url(path, lambda: os.pread(self._file(path), span.size, span.offset))

    def _file(self, path: str) -> int:
        if path in self._files:
            self._files.move_to_end(path)
        else:
            self._files[path] = os.open(path, os.O_RDONLY)
            if len(self._files) > OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        return self._files[path]

    def __getstate__(self) -> dict[str, Any]:
        return {"cache": self.cache, "allow_pipe": self.allow_pipe, "_files": OrderedDict()}

    def __del__(self) -> None:
        for file in getattr(self, "_files", {}).values():
            with suppress(OSError):
                os.close(file)


def _download(url: str, path: Path) -> None:
    if is_command(url):
        opened: Any = gopen(url)
    else:
        fs, name = file_system(url)
        opened = fs.open(name, "rb")
    with opened as source, atomic_write(path) as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _fetch(spans: list[Span]) -> list[bytes]:
    """Fetch remote spans all at once: file systems that can do so fetch them concurrently."""
    if not spans:
        return []
    fs, _ = file_system(spans[0].url)
    names = [fs._strip_protocol(span.url) for span in spans]
    starts = [span.offset for span in spans]
    ends = [span.offset + span.size for span in spans]

    def read() -> list[bytes]:
        return fs.cat_ranges(names, starts, ends, on_error="raise")  # pyright: ignore

    found = _with_retries(spans[0].url, read)
    for span, data in zip(spans, found, strict=True):
        if len(data) > span.size:
            raise ShardError(f"{span.url}: its server sends whole files only; set a cache folder")
    return found


def _with_retries(url: str, call: Callable[[], T]) -> T:
    """Make a call over a network, and try again after a while if it fails."""
    for left in reversed(range(TRIES)):
        try:
            return _with_url(url, call)
        except ShardError as error:
            if not left or isinstance(error.__cause__, _FINAL):
                raise
            time.sleep(0.2 * 4 ** (TRIES - 1 - left))
    raise AssertionError


def _with_url(url: str, call: Callable[[], T]) -> T:
    """Make a call whose errors name the file."""
    try:
        return call()
    except ImportError as error:
        raise ImportError(f"{url}: {error}") from None
    except Exception as error:
        raise ShardError(f"{url} cannot be read: {type(error).__name__}: {cut(error)}") from error
