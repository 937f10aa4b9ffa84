"""One owner of a folder: who is refused, and who is taken for dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from vit_rpe.data import FolderBusy, FolderLock, lock

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
sys.modules["vit_rpe"] = type(sys)("vit_rpe")          # the lock needs neither torch nor models
sys.modules["vit_rpe"].__path__ = [{root!r} + "/vit_rpe"]
data = sys.modules["vit_rpe.data"] = type(sys)("vit_rpe.data")
data.__path__ = [{root!r} + "/vit_rpe/data"]
from vit_rpe.data.lock import FolderLock, FolderBusy
try:
    with FolderLock({folder!r}, "run", wait={wait}):
        print("held", flush=True)
        time.sleep({seconds})
except FolderBusy as error:
    print(error, flush=True)
"""


def hold(folder: Path, seconds: float = 60, wait: float = 0) -> subprocess.Popen[str]:
    script = HOLD.format(root=str(ROOT), folder=str(folder), seconds=seconds, wait=wait)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_owner_is_told_about_the_first(tmp_path):
    first = hold(tmp_path)
    try:
        assert said(first) == "held"
        with pytest.raises(FolderBusy) as error, FolderLock(tmp_path, "run"):
            pass
        text = str(error.value)
        assert text.startswith(f"{tmp_path} is in use by another run: process {first.pid} on ")
        assert socket.gethostname() in text and " UTC, last sign of life 0 s ago" in text
        first.send_signal(signal.SIGSTOP)  # a stopped owner is an owner
        with pytest.raises(FolderBusy), FolderLock(tmp_path, "run"):
            pass
    finally:
        first.kill()
    # not waited for, so it is a zombie: dead all the same
    until = time.monotonic() + 10
    while lock._start_of(first.pid) is not None and time.monotonic() < until:
        time.sleep(0.01)
    with FolderLock(tmp_path, "run") as ours:
        ours.check()
    first.wait()
    assert list(tmp_path.iterdir()) == []


def test_of_many_at_once_one_holds_also_over_a_dead_owner(tmp_path):
    dead = replace(lock.Owner.here("run"), pid=2**22 + 1)
    (tmp_path / lock.NAME).write_text(json.dumps(asdict(dead)))
    many = [hold(tmp_path, seconds=3) for _ in range(8)]
    answers = [said(each) for each in many]
    for each in many:
        each.kill()
        each.wait()
    assert answers.count("held") == 1, answers


def test_one_that_waits_comes_next(tmp_path):
    with FolderLock(tmp_path / "new", "shards"):
        second = hold(tmp_path / "new", seconds=0, wait=30)
        time.sleep(0.3)
        assert second.poll() is None
    assert said(second) == "held" and second.wait(10) == 0


@pytest.mark.parametrize(("age", "lives"), [(0, True), (lock.STALE + 1, False)])
@pytest.mark.parametrize("content", ["another host", "another container", "garbage", "empty"])
def test_who_cannot_be_asked_lives_by_its_heartbeat(tmp_path, content, age, lives):
    here = lock.Owner.here("run")
    text = {
        "another host": json.dumps(asdict(replace(here, host="elsewhere"))),
        "another container": json.dumps(asdict(replace(here, space="pid:[1]"))),
        "garbage": '{"odd": 1}',
        "empty": "",
    }[content]
    path = tmp_path / lock.NAME
    path.write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))
    if lives:
        with pytest.raises(FolderBusy, match="is in use by another"), FolderLock(tmp_path, "run"):
            pass
        assert path.read_text() == text
    else:
        with FolderLock(tmp_path, "run"):
            pass


def test_a_number_that_was_given_to_another_process_is_no_owner(tmp_path):
    before = replace(lock.Owner.here("run"), pid=os.getppid(), started="1")
    (tmp_path / lock.NAME).write_text(json.dumps(asdict(before)))
    with FolderLock(tmp_path, "run"):
        pass


def test_the_heart_beats_and_a_lost_folder_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with FolderLock(tmp_path, "run") as ours:
        path = tmp_path / lock.NAME
        os.utime(path, (1, 1))
        until = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2
        other = json.dumps(asdict(replace(lock.Owner.here("run"), host="elsewhere")))
        path.write_text(other)
        with pytest.raises(FolderBusy, match="on elsewhere since"):
            ours.check()
    assert path.read_text() == other, "it is not ours to remove"


def test_without_locks_of_folders_the_file_is_still_exclusive(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(lock.errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with FolderLock(tmp_path, "run"):
        with pytest.raises(FolderBusy), FolderLock(tmp_path, "run"):
            pass
    with FolderLock(tmp_path, "run"):
        pass
