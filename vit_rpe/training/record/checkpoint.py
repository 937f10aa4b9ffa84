"""Checkpoints: folders of safetensors and JSON that exist as a whole or not at all.

run/checkpoints/
  epoch-0003/            after the evaluation of an epoch; step-00000120/ within one
    config.json          with model.safetensors: what timm.create_model('local-dir:...') reads
    model.safetensors
    ema/                 the same for the moving average
    optimizer.safetensors
    state.json           counters, metrics, structure of the optimizer's state, checksums
    README.md            a model card, if it was the best; people may change it: it has no checksum
  last -> epoch-0003     links for people, replaced atomically; this program does not need them
  best -> epoch-0002

A folder is written under another name, synced and renamed; then `last` is pointed at it; only then
are others removed. Whenever a run is killed, there is a whole checkpoint. The newest is found by
what is in it: its `state.json` has a serial number. The names of all that a run has written are in
there too, and nothing else is ever removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from vit_rpe.files import sha256_of

from ..errors import CheckpointError
from .integrity import (
    EMA,
    OPTIMIZER,
    STATE,
    VERSION,
    WEIGHTS,
    check_whole,
    checksum_of,
    read_state,
)
from .state_tree import flatten, restore

_HIDDEN = ".part-"
_OURS = re.compile(r"(epoch|step)-\d+(-\d+)?")  # names of checkpoints that this program makes
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none


@dataclass(frozen=True)
class Snapshot:
    """The state of a learner."""

    weights: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: Any
    scaler: dict[str, Any] | None = None


class Checkpoints:
    """The checkpoints of one run; written by the main process only."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.written: list[str] = []  # by this run, and not removed since

    # --- reading

    def exist(self) -> bool:
        """Return whether there is any trace of a checkpoint, whole or not."""
        links = (self.folder / link for link in ("last", "best"))
        return any(self._folders()) or any(link.is_symlink() for link in links)

    def by_age(self) -> tuple[list[Path], list[CheckpointError]]:
        """Return the checkpoints, newest first, and what is wrong with those of unknown age."""
        found, wrong = [], []
        for folder in self._folders():
            try:
                # of a checkpoint and its copy (a link that was followed) the original counts
                found.append((read_state(folder).age, bool(_OURS.fullmatch(folder.name)), folder))
            except CheckpointError as error:
                wrong.append(error)
        return [folder for *_, folder in sorted(found, reverse=True)], wrong

    def newest(self) -> tuple[Path | None, list[CheckpointError]]:
        """Return the newest whole checkpoint, and what is wrong with those that might be newer."""
        found, wrong = self.by_age()
        for folder in found:
            try:
                check_whole(folder)
                return folder, wrong
            except CheckpointError as error:
                wrong.append(error)
        return None, wrong

    def adopt(self, checkpoint: Path) -> None:
        """Resume from a checkpoint; if it is in this folder, what its run wrote is ours."""
        if checkpoint.parent.resolve() == self.folder.resolve():
            state = read_state(checkpoint)
            listed = state.written
            self.written = [*state.ranking, checkpoint.name] if listed is None else list(listed)

    def free(self, name: str) -> str:
        """Return a name that is not taken, as a folder cannot be replaced atomically."""
        free, number = name, 2
        while os.path.lexists(self.folder / free):
            free, number = f"{name}-{number}", number + 1
        return free

    def _folders(self) -> Iterator[Path]:
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            real = path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
            if real and (_OURS.fullmatch(path.name) or os.path.lexists(path / STATE)):
                yield path

    # --- writing

    def save(
        self,
        name: str,
        progress: dict[str, Any],
        snapshot: Snapshot,
        model: nn.Module,
        model_args: dict[str, Any],
        cards: Mapping[str, str] | None = None,
    ) -> None:
        """Write a checkpoint under a free name and point `last` at it; `progress` is plain JSON.

        `cards` are texts for people, by the names of their files.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{_HIDDEN}{name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        _write_model(part, snapshot.weights, model, model_args)
        if snapshot.ema is not None:
            _write_model(part / EMA, snapshot.ema, model, model_args)
        tree, tensors = flatten(snapshot.optimizer)
        _save(tensors, part / OPTIMIZER)
        files = sorted(file for file in part.rglob("*") if file.is_file())
        state = {
            "version": VERSION,
            "serial": self._next_serial(),
            "written": [*self.written, name],
            "progress": progress,
            "scaler": snapshot.scaler,
            "optimizer": tree,
            "sha256": {str(file.relative_to(part)): sha256_of(file) for file in files},
        }
        (part / STATE).write_text(json.dumps({**state, "checksum": checksum_of(state)}))
        for card, text in (cards or {}).items():
            (part / card).write_text(text, encoding="utf-8")
            files.append(part / card)
        for file in (*files, part / STATE, *(p for p in part.iterdir() if p.is_dir()), part):
            _sync(file)
        part.rename(self.folder / name)
        self.written.append(name)
        self.point("last", name)

    def settle(self, best: Sequence[str]) -> None:
        """Point the links at the newest and the best, and remove what the run needs no more."""
        for link, names in (("last", self.written[-1:]), ("best", best)):
            for name in [name for name in names if (self.folder / name).is_dir()][:1]:
                self.point(link, name)
        self.keep_only(best)

    def point(self, link: str, name: str) -> None:
        """Point a link at a checkpoint, atomically: it always leads to one or the other."""
        new, path = self.folder / f"{_HIDDEN}{link}", self.folder / link
        if path.is_dir() and not path.is_symlink():  # a copy of the run that followed its links
            path.rename(self.folder / self.free(f"{link}-copy"))
        new.unlink(missing_ok=True)
        try:
            new.symlink_to(name, target_is_directory=True)
            os.replace(new, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        _sync(self.folder)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove what this run wrote and nothing names or links to, and what a killed run left."""
        paths = sorted(self.folder.iterdir())  # half ones, which are hidden, come first
        links = {os.path.basename(os.readlink(path)) for path in paths if path.is_symlink()}
        kept = {*names, *links, self.written[-1]} if self.written else {*names, *links}
        for path in paths:
            name = path.name.removeprefix(_HIDDEN)
            half = path.name != name
            if not _OURS.fullmatch(name) or path.is_symlink() or not path.is_dir():
                continue
            if half or (name in self.written and name not in kept):
                hidden = self.folder / f"{_HIDDEN}{name}"
                path.rename(hidden)  # never half a checkpoint under a good name
                shutil.rmtree(hidden, ignore_errors=True)
        self.written = [name for name in self.written if (self.folder / name).is_dir()]

    def _next_serial(self) -> int:
        found, _ = self.by_age()
        return 1 + max((read_state(folder).serial for folder in found), default=0)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], Snapshot]:
    """Return the progress and the state in a checkpoint, if it is whole; nothing in it is run."""
    state = check_whole(folder)
    tensors = _load(folder / OPTIMIZER)
    try:
        optimizer = restore(state.optimizer, tensors)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / STATE} is damaged: optimizer: {error!r}") from None
    return state.progress, Snapshot(
        weights=_load(folder / WEIGHTS),
        ema=_load(folder / EMA / WEIGHTS) if (folder / EMA).is_dir() else None,
        optimizer=optimizer,
        scaler=state.scaler,
    )


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None


def _save(tensors: dict[str, Tensor], file: Path, **options: Any) -> None:
    try:
        save_file(tensors, file, **options)
    except SafetensorError as error:  # what the system said is in its text only
        raise OSError(f"{file} cannot be written: {error}") from None


def _write_model(
    folder: Path, weights: dict[str, Tensor], model: nn.Module, model_args: dict[str, Any]
) -> None:
    folder.mkdir(exist_ok=True)
    flat = {
        name: value.detach().to("cpu", memory_format=torch.contiguous_format)
        for name, value in weights.items()
    }
    _save(flat, folder / WEIGHTS, metadata={"format": "pt"})
    # timm's signature says str, its body wants a Path
    save_config_for_hf(model, folder / "config.json", model_args=model_args)  # pyright: ignore


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
