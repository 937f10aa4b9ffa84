"""The record of a run, as far as its steps can be made again from it and compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, RecipeError
from ..recipe.file import check, load_recipe
from ..recipe.schema import Recipe
from ..record.find import RECIPE
from ..record.log import LOG, read_log
from ..record.steps import Outcome, read_steps

Line = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """A start of a run after `step` steps: its recipe as it was settled, and its surroundings.

    `told` is the line of the log, of which earlier versions wrote less, or nothing.
    """

    step: int
    recipe: Recipe
    told: Line = field(default_factory=dict)

    def process(self, name: str) -> Any:
        """Return a fact about the processes: world_size, threads, device; None if not recorded."""
        return self.part("processes").get(name)

    def part(self, name: str) -> Line:
        """Return a part of the line: processes, versions, machine, model."""
        found = self.told.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def data(self) -> str | None:
        """The digest of the shards, if it was recorded."""
        return self.told.get("data")


@dataclass(frozen=True)
class History:
    """The starts of a run, the figures of its steps, its epochs, and how far it came."""

    folder: Path
    starts: list[Start]
    steps: dict[int, Outcome]
    epochs: dict[int, Line]
    last: int

    def start_of(self, step: int) -> Start:
        """Return the start to which a step belongs; steps count from 1."""
        return [start for start in self.starts if start.step < step][-1]


def read_history(path: str | Path) -> History:
    """Read the folder of a run; nothing in it is changed."""
    folder = Path(path).expanduser()
    if not (folder / RECIPE).is_file():
        raise CheckpointError(f"{path} is not a run: it has no {RECIPE}")
    lines, _ = read_log(folder)
    steps = {**_logged(lines), **read_steps(folder)}
    epochs = {line["epoch"]: line for line in lines if _is(line, "epoch", "epoch")}
    ends = [line["step"] for line in lines if _is(line, "epoch", "step")]
    last = max([*steps, *ends], default=0)
    return History(folder, [*_starts(folder, lines)], steps, epochs, last)


def _starts(folder: Path, lines: list[Line]) -> Iterator[Start]:
    recipe = load_recipe(folder / RECIPE)  # as it was at the last start
    told = [line for line in lines if _is(line, "start", "step")]
    if not told:
        yield Start(0, recipe)
    for line in told:
        settled, where = line.get("settled"), f"{folder / LOG}, start after step {line['step']}"
        if settled is None:
            yield Start(line["step"], recipe, line)
        elif isinstance(settled, dict):
            yield Start(line["step"], check(settled, {}, where), line)
        else:
            raise RecipeError(f"{where}: settled: a recipe was expected")


def _logged(lines: list[Line]) -> dict[int, Outcome]:
    """Return the steps of which the log has the figures: all that an earlier version recorded."""
    found = {}
    for line in lines:
        if _is(line, "train", "step"):
            with suppress(KeyError, TypeError, ValueError):  # a line that somebody else wrote
                values = [float(line[name]) for name in ("loss", "grad_norm", "lr")]
                found[line["step"]] = Outcome(line["step"], *values, skipped=False)
    return found


def _is(line: Line, event: str, number: str) -> bool:
    return line.get("event") == event and isinstance(line.get(number), int)
