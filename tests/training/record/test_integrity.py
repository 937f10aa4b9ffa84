"""Damage is named in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import train
from vit_rpe.training import CheckpointError
from vit_rpe.training.record.checkpoint import read_checkpoint
from vit_rpe.training.record.find import find_checkpoint
from vit_rpe.training.record.integrity import STATE, checked
from vit_rpe.training.record.progress import Progress


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = [
    ("model.safetensors", _cut, "model.safetensors is damaged: its checksum"),
    ("optimizer.safetensors", _flip, "optimizer.safetensors is damaged: its checksum"),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("state.json", _cut, "state.json is damaged"),
    ("state.json", Path.unlink, "state.json is missing; a run cannot be resumed from weights"),
    (
        "state.json",
        lambda p: p.write_text('{"version": 99}'),
        "has version 99, this program reads 1",
    ),
    ("config.json", _flip, "config.json is damaged: its checksum"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_damage_is_named(copy, name, damage, message):
    folder = find_checkpoint(copy)
    damage(folder / name)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    assert message in str(error.value) and str(folder) in str(error.value)


def again(run: Path, copy: Path, *overrides: str) -> tuple[int, str]:
    recipe = ["--recipe", str(run.parent / "a.yaml"), f"output={copy.parent}"]
    return train(*recipe, *overrides)


def test_a_damaged_checkpoint_stops_a_run_that_names_it_in_one_line(run, copy):
    _cut(find_checkpoint(copy) / "model.safetensors")
    code, shown = again(run, copy, f"resume={copy}")
    assert code == 2 and "model.safetensors is damaged" in shown and shown.count("\n") == 1


def _set(*keys: str, to: Any) -> Any:
    def change(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = to

    return change


ODD = [
    (_set("sha256", to={}), "it has no checksum of model.safetensors"),
    (_set("sha256", to=3), "sha256: input should be"),
    (_set("progress", to=None), "progress: input should be"),
    (_set("progress", "state", to={"step": "x"}), "state.step: input should be a valid integer"),
    (_set("progress", "state", "ranking", to=[["x"]]), "state.ranking.0.1: field required"),
    (_set("progress", "log", to=[]), "log: input should be a valid integer"),
    (_set("optimizer", to={"dict": 3}), "damaged: optimizer: "),
    (_set("optimizer", to={"odd": 1, "two": 2}), "damaged: optimizer: "),
    (_set("optimizer", to={"tensor": "nowhere"}), "damaged: optimizer: "),
    (_set("scaler", to="x"), "scaler: input should be"),
    (lambda state: state.pop("progress"), "progress: field required"),
    (lambda state: state.pop("optimizer"), "optimizer: field required"),
]


@pytest.mark.parametrize(("change", "message"), ODD, ids=lambda v: v if isinstance(v, str) else "")
def test_an_odd_state_is_one_line(copy, change, message):
    """With a checksum that fits, or without one, as in older checkpoints."""
    folder = find_checkpoint(copy)
    state = json.loads((folder / STATE).read_text())
    del state["checksum"]
    change(state)
    (folder / STATE).write_text(json.dumps(state))
    with pytest.raises(CheckpointError) as error:
        found, _ = read_checkpoint(folder)
        checked(Progress, found, folder / STATE)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_state_that_was_changed_or_is_no_file(copy):
    file = find_checkpoint(copy) / "state.json"
    text = file.read_text()
    file.write_text(text.replace('"step": 10', '"step": 9'))
    with pytest.raises(CheckpointError, match="it does not fit its own checksum"):
        read_checkpoint(file.parent)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="state.json is not a file"):
        read_checkpoint(file.parent)
    file.unlink()
    old = json.loads(text)
    for key in ("checksum", "serial", "written"):
        del old[key]
    file.write_text(json.dumps(old))  # as older programs wrote it
    assert read_checkpoint(file.parent)[0]["state"]["step"] == 10
