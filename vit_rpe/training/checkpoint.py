"""Checkpoints: folders of safetensors and JSON that are there whole or not at all.

run/checkpoints/
  epoch-0003/            after the evaluation of an epoch; step-00000120/ within one
    config.json          with model.safetensors: what timm.create_model('local-dir:...') reads
    model.safetensors
    ema/                 the same for the moving average
    optimizer.safetensors
    state.json           counters, metrics, structure of the optimiser's state, checksums
  last -> epoch-0003     links, replaced in one step
  best -> epoch-0002

A folder is written under another name, synced and renamed; then `last` is turned to it; only then
others are removed. Whenever a run is killed, `last` leads to a whole checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from .errors import CheckpointError
from .state_tree import flatten, restore

WEIGHTS, OPTIMIZER, STATE, EMA = "model.safetensors", "optimizer.safetensors", "state.json", "ema"
VERSION = 1
_HIDDEN = ".part-"


@dataclass(frozen=True)
class Snapshot:
    """The state of what learns."""

    weights: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: Any
    scaler: dict[str, Any] | None = None


class Checkpoints:
    """The checkpoints of one run; written by the main process alone."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(
        self,
        name: str,
        progress: dict[str, Any],
        snapshot: Snapshot,
        model: nn.Module,
        model_args: dict[str, Any],
    ) -> None:
        """Write a checkpoint under a free name and turn `last` to it; `progress` is plain JSON."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{_HIDDEN}{name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        _write_model(part, snapshot.weights, model, model_args)
        if snapshot.ema is not None:
            _write_model(part / EMA, snapshot.ema, model, model_args)
        tree, tensors = flatten(snapshot.optimizer)
        save_file(tensors, part / OPTIMIZER)
        files = sorted(file for file in part.rglob("*") if file.is_file())
        state = {
            "version": VERSION,
            "progress": progress,
            "scaler": snapshot.scaler,
            "optimizer": tree,
            "sha256": {str(file.relative_to(part)): _sha256(file) for file in files},
        }
        (part / STATE).write_text(json.dumps(state))
        for file in (*files, part / STATE, *(p for p in part.iterdir() if p.is_dir()), part):
            _sync(file)
        part.rename(self.folder / name)
        self.point("last", name)

    def point(self, link: str, name: str) -> None:
        """Turn a link to a checkpoint, in one step: there is always one or the other."""
        new = self.folder / f"{_HIDDEN}{link}"
        new.unlink(missing_ok=True)
        new.symlink_to(name, target_is_directory=True)
        os.replace(new, self.folder / link)
        _sync(self.folder)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the checkpoints that are neither named nor linked, and what a killed run left."""
        links = {link.resolve().name for link in self.folder.iterdir() if link.is_symlink()}
        kept = {*names, *links}
        for path in list(self.folder.iterdir()):
            if path.is_symlink() or not path.is_dir() or path.name in kept:
                continue
            if not path.name.startswith(_HIDDEN):  # never half a checkpoint under a good name
                path = path.rename(self.folder / f"{_HIDDEN}{path.name}")
            shutil.rmtree(path, ignore_errors=True)

    def last(self) -> Path | None:
        path = self.folder / "last"
        return path.resolve() if path.exists() else None

    def free(self, name: str) -> str:
        """A folder cannot be replaced in one step, so a second one of a name gets a number."""
        free, number = name, 2
        while (self.folder / free).exists():
            free, number = f"{name}-{number}", number + 1
        return free


def read(folder: Path) -> tuple[dict[str, Any], Snapshot]:
    """Progress and state in a checkpoint, if it is whole; nothing in it is ever run."""
    state = _read_state(folder)
    for name, digest in state["sha256"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if _sha256(file) != digest:
            raise CheckpointError(f"{file} is damaged: its checksum is not the one in {STATE}")
    return state["progress"], Snapshot(
        weights=_load(folder / WEIGHTS),
        ema=_load(folder / EMA / WEIGHTS) if (folder / EMA).is_dir() else None,
        optimizer=restore(state["optimizer"], _load(folder / OPTIMIZER)),
        scaler=state["scaler"],
    )


def find_checkpoint(place: str | Path, prefer: str = "last") -> Path:
    """The checkpoint that a run, a link or a folder means."""
    path = Path(place).expanduser()
    for candidate in (path, path / "checkpoints" / prefer, path / "checkpoints" / "last"):
        if (candidate / WEIGHTS).is_file():
            return candidate.resolve()
    if (path / "recipe.yaml").is_file():
        raise CheckpointError(f"{place} is a run that has no checkpoint yet")
    raise CheckpointError(f"no checkpoint at {place}: neither a run nor a folder with {WEIGHTS}")


def find_model(place: str | Path, ema: bool = True) -> Path:
    """The folder that timm loads: the best checkpoint's average where there is one and `ema`."""
    found = find_checkpoint(place, "best")
    return found / EMA if ema and (found / EMA / WEIGHTS).is_file() else found


def find_weights(place: str | Path) -> Path:
    """The .safetensors file that a run, a checkpoint or a path means."""
    path = Path(place).expanduser()
    if path.is_file():
        if path.suffix != ".safetensors":
            raise CheckpointError(f"{place}: weights are read from .safetensors files only")
        return path
    return find_checkpoint(path, "best") / WEIGHTS


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / STATE).read_text())
        version = state["version"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: {STATE} is missing; weights alone cannot go on") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / STATE} is damaged: {error}") from None
    if version != VERSION:
        raise CheckpointError(f"{folder} has version {version}, this program reads {VERSION}")
    return state


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None


def _write_model(
    folder: Path, weights: dict[str, Tensor], model: nn.Module, model_args: dict[str, Any]
) -> None:
    folder.mkdir(exist_ok=True)
    flat = {
        name: value.detach().to("cpu", memory_format=torch.contiguous_format)
        for name, value in weights.items()
    }
    save_file(flat, folder / WEIGHTS, metadata={"format": "pt"})
    # timm's signature says str, its body wants a Path
    save_config_for_hf(model, folder / "config.json", model_args=model_args)  # pyright: ignore


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
