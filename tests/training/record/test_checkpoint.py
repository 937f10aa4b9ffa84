"""Checkpoints: whole or not at all, at every moment of saving."""

from __future__ import annotations

import os
import shutil

import timm
import torch

from vit_rpe.training.record.checkpoint import Checkpoints, Snapshot, read_checkpoint


def test_names_that_are_taken_get_a_number(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1-2").mkdir()
    assert checkpoints.free("step-1") == "step-1-3" and checkpoints.free("step-2") == "step-2"


def test_what_is_not_needed_is_removed(tmp_path):
    """And nothing else: neither other people's folders nor those of another run."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.written = ["epoch-1", "epoch-2", "epoch-3", "mine"]
    foreign = {"epoch-9", "my_model", ".part-mine", "mine"}
    for name in ("epoch-1", "epoch-2", "epoch-3", ".part-epoch-4", ".part-epoch-2", *foreign):
        (tmp_path / name).mkdir()
    (tmp_path / "epoch-5").write_text("a file")
    (tmp_path / "loop").symlink_to("loop")
    checkpoints.point("last", "epoch-3")
    checkpoints.keep_only(["epoch-1"])
    left = {"epoch-1", "epoch-3", "last", "loop", "epoch-5", *foreign}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert checkpoints.written == ["epoch-1", "epoch-3", "mine"]
    (tmp_path / ".part-best").symlink_to("epoch-9")  # by a process that was killed just then
    checkpoints.written = ["epoch-1", "epoch-3"]
    checkpoints.settle(["epoch-2", "epoch-1"])
    links = {name: os.readlink(tmp_path / name) for name in ("last", "best")}
    assert links == {"last": "epoch-3", "best": "epoch-1"}
    assert {path.name for path in tmp_path.iterdir()} == {*left, "best"}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def test_last_is_whole_at_every_moment_of_saving(tmp_path, monkeypatch):
    """The process ends before the n-th call that changes or syncs a file, for every n."""
    model = timm.create_model("resnet10t", num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    snapshot = Snapshot(model.state_dict(), model.state_dict(), optimizer.state_dict())
    Checkpoints(tmp_path / "0").save("epoch-1", {"epoch": 1}, snapshot, model, {})
    calls, limit, armed, finished = 0, 0, False, False
    for name in ("fsync", "replace", "rename", "unlink", "symlink"):
        system = getattr(os, name)

        def call(*args, system=system, **options):
            nonlocal calls
            calls += armed
            if armed and calls == limit:
                raise Killed
            return system(*args, **options)

        monkeypatch.setattr(os, name, call)
    while not finished:
        calls, limit = 0, limit + 1
        shutil.copytree(tmp_path / "0", tmp_path / str(limit), symlinks=True)
        checkpoints = Checkpoints(tmp_path / str(limit))
        checkpoints.adopt(checkpoints.folder / "epoch-1")
        armed = True
        try:
            checkpoints.save("epoch-2", {"epoch": 2}, snapshot, model, {})
            checkpoints.keep_only([])
            finished = True
        except Killed:
            pass
        armed = False
        newest, _ = Checkpoints(checkpoints.folder).newest()
        assert newest is not None, f"nothing whole after an end before call {limit}"
        for folder in (newest, checkpoints.folder / "last"):
            progress, _ = read_checkpoint(folder)
            assert progress["epoch"] == 2 if finished else progress["epoch"] in (1, 2)
    assert limit > 12
    assert {path.name for path in checkpoints.folder.iterdir()} == {"epoch-2", "last"}
