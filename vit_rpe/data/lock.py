"""A lock on a folder: a file that names the owner and whose age shows that the owner is alive.

    with FolderLock(folder, what="run") as lock:   # FolderBusy if another process works there
        ...
        lock.check()                               # FolderBusy if it was taken over meanwhile

The owner is dead if its process is gone, on the same host; on another host, which cannot be asked,
if the file has not been touched for `STALE` seconds. The kernel's lock of the folder keeps two
apart that find a dead owner at the same moment. Where a file system has no such locks (most network
file systems, for folders), creating the file is still exclusive: only that moment is unguarded.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from .errors import FolderBusy

NAME = ".lock"
BEAT = 10.0  # seconds between two signs of life
STALE = 120.0  # seconds without one after which an owner on another host is taken for dead
_POLL = 0.1  # seconds between two looks of one that waits


@dataclass(frozen=True)
class Owner:
    """The process that holds a folder; `started` tells it from a later one with the same number."""

    what: str = "process"
    host: str = "an unknown host"
    space: str = ""  # of process numbers: a container has its own
    pid: int = 0
    started: str = ""
    since: str = "an unknown time"

    @classmethod
    def here(cls, what: str) -> Owner:
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        pid = os.getpid()
        return cls(what, socket.gethostname(), _space(), pid, _start_of(pid) or "", since)

    def lives(self, age: float) -> bool:
        """Tell whether the owner is alive; `age` is that of its last sign of life, in seconds."""
        if (self.host, self.space) != (socket.gethostname(), _space()):
            return age < STALE
        started = _start_of(self.pid)
        return started is not None and ("" in (started, self.started) or started == self.started)


class FolderLock:
    """Hold a folder while entered; `wait` is how many seconds to wait for another owner."""

    def __init__(self, folder: str | Path, what: str, wait: float = 0.0):
        self.folder, self.what, self.wait = Path(folder), what, wait
        self.path = self.folder / NAME
        self._done = threading.Event()

    def __enter__(self) -> FolderLock:
        self._made_folder = not self.folder.exists()
        self._owner = Owner.here(self.what)
        until = time.monotonic() + self.wait
        while not self._take():
            if not self.path.exists():
                continue  # its owner has just left
            if time.monotonic() >= until:
                raise self._busy()
            time.sleep(_POLL)
        threading.Thread(target=self._beat, name="folder-lock", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if os.getpid() != self._owner.pid or self._read() != self._owner:
            return  # a forked copy of the owner, or one that another host took for dead
        self.path.unlink(missing_ok=True)
        if self._made_folder:
            with suppress(OSError):  # it is kept unless it is empty
                self.folder.rmdir()

    def check(self) -> None:
        """Raise FolderBusy if another host has taken this owner for dead."""
        if self._read() != self._owner:
            raise self._busy()

    def _take(self) -> bool:
        """Write this owner into the file, unless another one is alive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with _kernel_lock(self.folder):
                owner = self._read()
                if owner is not None and owner.lives(self._age()):
                    return False
                self.path.unlink(missing_ok=True)
                with open(self.path, "x") as file:
                    json.dump(asdict(self._owner), file)
                return True
        except (FileExistsError, FileNotFoundError):  # another was faster, or left with its folder
            return False

    def _read(self) -> Owner | None:
        """Read the owner from the file; one without a name is alive as long as the file is new."""
        try:
            return Owner(**json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return Owner()

    def _age(self) -> float:
        """Return the seconds since the last sign of life, by the clock of the file system."""
        with tempfile.TemporaryFile(dir=self.folder) as now, suppress(FileNotFoundError):
            return os.fstat(now.fileno()).st_mtime - self.path.stat().st_mtime
        return float("inf")

    def _beat(self) -> None:
        while not self._done.wait(BEAT):
            with suppress(OSError):
                os.utime(self.path)

    def _busy(self) -> FolderBusy:
        owner = self._read() or Owner()
        return FolderBusy(
            f"{self.folder} is in use by another {owner.what}: process {owner.pid} on {owner.host} "
            f"since {owner.since}, last sign of life {max(self._age(), 0):.0f} s ago"
        )


@contextmanager
def _kernel_lock(folder: Path) -> Iterator[None]:
    """Keep other processes out for a moment, where the file system can lock a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield
    finally:
        os.close(descriptor)


def _start_of(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # somebody else's, and there
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""  # no /proc, or it does not tell
    return None if state in "ZX" else fields[18]


def _space() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
