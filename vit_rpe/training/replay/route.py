"""The way to a past step: the checkpoint to begin at, and the starts of the run on the way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vit_rpe.messages import counted

from ..errors import CheckpointError
from ..record.checkpoint import Checkpoints
from ..record.integrity import check_whole, read_state
from .history import History, Start


@dataclass(frozen=True)
class Leg:
    """Steps that belong to one start of a run: those after `begin`, up to and with `end`."""

    start: Start
    begin: int
    end: int


@dataclass(frozen=True)
class Route:
    """Legs to a step, the checkpoint to begin at (None: random weights), and what was passed by."""

    legs: list[Leg]
    checkpoint: Path | None
    notes: list[str] = field(default_factory=list)

    @property
    def begin(self) -> int:
        return self.legs[0].begin

    def text(self) -> str:
        """Say where it begins and how long it is."""
        steps = self.legs[-1].end - self.begin
        here = f"step {self.begin}" if self.checkpoint is None else self.checkpoint.name
        return f"{counted(steps, 'step')} from {here if self.begin else 'the beginning'}"


def find_route(history: History, step: int, whole: bool = False) -> Route:
    """Return the shortest way to a step; `whole`: the one that passes through all steps."""
    first = history.starts[0]
    if step <= first.step:
        origin = f" of {first.recipe.resume}" if first.recipe.resume else ""
        raise CheckpointError(
            f"{history.folder} began after step {first.step}{origin}: step {step} is not one of it"
        )
    checkpoint, begin, notes = None, 0, []
    if not whole or first.step:
        limit = first.step if whole else step - 1
        checkpoint, begin, notes = _nearest(history.folder, first.step, limit)
    if begin < first.step:
        raise CheckpointError(
            f"{history.folder} began after step {first.step} of another run, and keeps no "
            f"checkpoint before step {step}"
        )
    ends = [*(start.step for start in history.starts[1:]), step]
    legs = [
        Leg(start, max(begin, start.step), min(step, end))
        for start, end in zip(history.starts, ends, strict=True)
    ]
    return Route([leg for leg in legs if leg.begin < leg.end], checkpoint, notes)


def _nearest(run: Path, least: int, most: int) -> tuple[Path | None, int, list[str]]:
    """Return the last whole checkpoint within some steps, its step, and the damaged ones."""
    found, wrong = Checkpoints(run / "checkpoints").by_age()
    states = {}
    for folder in found:
        with suppress(CheckpointError):  # a run that is going on has just removed it
            states[folder] = read_state(folder)
    # what a run that resumed from an older checkpoint has left behind is no longer a part of it
    ours = next((state.written for state in states.values()), None)
    newest = next(iter(states), None)
    steps = [
        (state.step, state.serial, folder)
        for folder, state in states.items()
        if least <= state.step <= most and (not ours or folder.name in ours or folder == newest)
    ]
    notes = [f"{error}; passed by" for error in wrong]
    for step, _, folder in sorted(steps, reverse=True):
        try:
            check_whole(folder)
            return folder, step, notes
        except CheckpointError as error:
            notes.append(f"{error}; passed by")
    return None, 0, notes
