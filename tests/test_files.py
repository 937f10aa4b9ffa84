"""Files that are written whole, read if they are regular, and the one cache folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from vit_rpe.files import atomic_write, cache_folder, open_regular, read_regular, sha256_of


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "x"
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []  # neither the file nor a part of it
    with atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole" and list(path.parent.iterdir()) == [path]
    theirs = path.with_name(f".x.{os.getpid()}.part")
    theirs.symlink_to(tmp_path / "elsewhere")
    with atomic_write(path) as file:
        file.write(b"again")
    assert path.read_bytes() == b"again" and not (tmp_path / "elsewhere").exists()


def test_the_cache_folder(monkeypatch, tmp_path):
    for name in ("VIT_RPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "vit_rpe"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vit_rpe"
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_the_sum_of_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")
    (tmp_path / "x").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(OSError, match="has 3 bytes, at most 2 are read"):
        read_regular(tmp_path / "x", 2)
    with pytest.raises(OSError, match="no name of a file"):
        open_regular("a\0b")
