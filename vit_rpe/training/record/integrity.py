"""The integrity of a checkpoint: what its state.json says, and checksums of all its files."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vit_rpe.files import sha256_of

from ..errors import CheckpointError

WEIGHTS, OPTIMIZER, STATE, EMA = "model.safetensors", "optimizer.safetensors", "state.json", "ema"
VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """The content of state.json; `serial` and `written` are missing in older ones."""

    version: int
    progress: dict[str, Any]
    optimizer: Any
    sha256: dict[str, str]
    scaler: dict[str, Any] | None = None
    serial: int = 0
    written: list[str] | None = None

    @property
    def age(self) -> tuple[int, int, int]:
        """A key that grows from checkpoint to checkpoint of a run."""
        return self.serial, self.step, self._counter("epoch")

    @property
    def step(self) -> int:
        """The steps that the run had made."""
        return self._counter("step")

    @property
    def ranking(self) -> list[str]:
        """Names of the best checkpoints, the best first."""
        counters = self.progress.get("state")
        ranking = counters.get("ranking") if isinstance(counters, dict) else None
        return [str(entry[0]) for entry in ranking or [] if isinstance(entry, list) and entry]

    def _counter(self, name: str) -> int:
        counters = self.progress.get("state")
        value = counters.get(name) if isinstance(counters, dict) else None
        return value if isinstance(value, int) else 0


def read_state(folder: Path) -> State:
    """Read state.json, if it is as it was written."""
    file = folder / STATE
    if not os.path.lexists(file):
        raise CheckpointError(
            f"{folder}: {STATE} is missing; a run cannot be resumed from weights only"
        )
    if not file.is_file():
        raise CheckpointError(f"{file} is not a file")
    try:
        values = json.loads(file.read_text())
        version = values["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    if version != VERSION:
        raise CheckpointError(f"{folder} has version {version}, this program reads {VERSION}")
    checksum = values.pop("checksum", None)  # older ones have none
    if checksum is not None and checksum != checksum_of(values):
        raise CheckpointError(f"{file} is damaged: it does not fit its own checksum")
    return checked(State, values, file)


def checked(kind: type[T], values: Any, file: Path) -> T:
    """Make a dataclass of the values in a file, if they have its names and types."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{file} is damaged: {where}: {first['msg'].lower()}") from None


def check_whole(folder: Path) -> State:
    """Refuse a checkpoint of which a file is missing or is not what was written."""
    state = read_state(folder)
    for name in (*state.sha256, WEIGHTS, OPTIMIZER):
        _check_file(folder, name, state)
    return state


def check_weights(file: Path) -> Path:
    """Refuse weights, or their configuration, that are not what their checkpoint wrote.

    Weights that are in no checkpoint have no checksums, and pass.
    """
    folder = file.parent.parent if file.parent.name == EMA else file.parent
    if (folder / STATE).is_file():
        state = read_state(folder)
        for path in (file, file.with_name("config.json")):
            name = str(path.relative_to(folder))
            if path == file or name in state.sha256:
                _check_file(folder, name, state)
    return file


def _check_file(folder: Path, name: str, state: State) -> None:
    file = folder / name
    if not file.is_file():
        raise CheckpointError(f"{folder}: {name} is missing")
    if name not in state.sha256:
        raise CheckpointError(f"{folder / STATE} is damaged: it has no checksum of {name}")
    if sha256_of(file) != state.sha256[name]:
        raise CheckpointError(f"{file} is damaged: its checksum is not the one in {STATE}")


def checksum_of(state: dict[str, Any]) -> str:
    """Return the checksum of a state, as state.json holds it."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()
