"""Making a past step of a run again: by its trainer, in a folder of its own, compared as it goes.

The run's folder is only read. A trainer is resumed from the nearest checkpoint, or begun; it makes
its steps as it does in training, and an observer looks on. Where the run itself was stopped and
resumed, a trainer takes up from the one before, with the recipe and the threads of that start.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from vit_rpe.program import program

from ..assembly.assemble import assemble
from ..distributed import accelerator_for, broadcast, on_main
from ..errors import CheckpointError, Unequal
from ..loop.trainer import Trainer
from ..record.progress_bar import ProgressBar
from ..record.steps import Outcome
from ..run import make_run
from .condition import Condition
from .history import History, read_history
from .route import Leg, Route, find_route
from .surroundings import as_it_was, differences, settle
from .view import Ears, Seen, View

FIGURES = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """A step that was made again, the way to it, and how many steps were compared and equal."""

    history: History
    route: Route
    seen: Seen
    compared: int
    step_compared: bool


def replay_step(
    run: str | Path,
    step: int | None = None,
    first: Condition | None = None,
    *,
    changes: dict[str, Any] | None = None,
    say: Say = print,
) -> Replayed | None:
    """Make a step again, or the first that meets a condition; None if there is none.

    `changes` are keys of the recipe that do not tell on results: data_dir, workers. Raises Unequal
    at the first step that is not what the run recorded.
    """
    history = read_history(run)
    if history.last == 0:
        raise CheckpointError(f"{run} recorded no step: there is nothing to replay")
    whole = False
    if first is not None:
        step, whole = _find(history, first)
        if step is None:
            return None
        if not whole:
            say(f"first: {first.text} at step {step} of {history.last}")
    assert step is not None
    if step > history.last:
        raise CheckpointError(f"{run} has made {history.last} steps: there is no step {step}")
    route = find_route(history, step, whole)
    for note in route.notes:
        say(f"{program('replay')}: warning: {note}")
    way = Walk(history, route, first if whole else None, changes or {}, say)
    return way.walk()


def _find(history: History, condition: Condition) -> tuple[int | None, bool]:
    """Return the first step that meets a condition by the record, and whether to look for it.

    The steps of an earlier version, which recorded some only, must be made again: then the first
    is at most the last step.
    """
    for step in range(history.starts[0].step + 1, history.last + 1):
        outcome = history.steps.get(step)
        if outcome is None:
            return history.last, True
        if condition.holds(outcome):
            return step, False
    return None, False


class Walk:
    """A walk along a route, to its end or to the first step that meets a condition."""

    def __init__(
        self,
        history: History,
        route: Route,
        condition: Condition | None,
        changes: dict[str, Any],
        say: Say,
    ):
        self.history, self.route, self.condition = history, route, condition
        self.changes, self.say = changes, say
        self.end = route.legs[-1].end
        self.compared, self.last_compared = 0, False

    def walk(self) -> Replayed | None:
        """Make the steps; return what was seen of the last, None if none met the condition."""
        accelerator = accelerator_for(self._recipe(self.route.legs[0]))
        wanted = f"step {self.end}"
        if self.condition is not None:
            wanted = f"the first step with {self.condition.text}, which the run did not record"
        self.say(f"replay: {wanted}: {self._at_most()}{self.route.text()}")
        with tempfile.TemporaryDirectory(prefix="vit_rpe-replay-") as made:
            folder, resume = Path(broadcast(accelerator, made)), self.route.checkpoint
            for leg in self.route.legs:
                settle(leg.start, accelerator, self._command())
                trainer = self._trainer(leg, accelerator, folder, resume)
                view = self._along(leg, trainer)
                if view is not None:
                    return Replayed(
                        self.history, self.route, view.seen(), self.compared, self.last_compared
                    )
                if leg.end < self.end:
                    trainer.save(f"step-{leg.end:08d}")
                    resume = on_main(accelerator, lambda: _newest(folder))
                    accelerator.free_memory()
        return None

    def _trainer(
        self, leg: Leg, accelerator: Accelerator, folder: Path, resume: Path | None
    ) -> Trainer:
        recipe = self._recipe(leg)
        trainer = assemble(make_run(recipe, accelerator, folder), resume, recipe)
        if leg.start.data not in (None, trainer.loader.shards.digest):
            raise CheckpointError(
                f"{self.history.folder} was made with other data than those at {recipe.data_dir}"
            )
        self.here = differences(leg.start, accelerator, trainer.run.provenance.get("plan"))
        for each in self.here:
            self.say(f"{program('replay')}: warning: {each}: the bits may differ")
        return trainer

    def _along(self, leg: Leg, trainer: Trainer) -> View | None:
        """Make the steps of a leg; return the view of the one that was looked for."""
        bar = ProgressBar(self.end, leg.begin, trainer.accelerator.is_main_process)
        looking = self.condition is not None
        self._pass_epoch(trainer)
        with (
            closing(bar),
            closing(trainer.loader.batches(trainer.state.step, leg.end)) as batches,  # pyright: ignore
        ):
            for batch in batches:
                is_last = trainer.state.step + 1 == self.end
                trainer.observer = view = View(trainer) if looking or is_last else Ears()
                trainer.advance(batch, 0.0)
                outcome = view.made
                self._compare(outcome)
                bar.update("replay", f"loss {outcome.loss:.4f}")
                if bar.is_silent:
                    bar.step_line(f"replay: step {outcome.step} of {self.end}")
                found = self.condition is not None and self.condition.holds(outcome)
                if isinstance(view, View) and (found or not looking):
                    return view
                self._pass_epoch(trainer)
        return None

    def _pass_epoch(self, trainer: Trainer) -> None:
        """At the end of an epoch, do what its evaluation did to the training."""
        epoch = trainer.state.epoch + 1
        if trainer.state.step != epoch * trainer.steps_per_epoch:
            return
        if trainer.is_evaluated(epoch):
            trainer.learner.models()  # buffers become those of the main process
        row = self.history.epochs.get(epoch, {})
        metric = row.get(trainer.recipe.best_of)
        if metric is None and trainer.recipe.sched == "plateau":
            raise CheckpointError(f"{self.history.folder} has no metrics of epoch {epoch}")
        values = {} if metric is None else {trainer.recipe.best_of: float(metric)}
        trainer.count_epoch({"epoch": epoch, **values})

    def _compare(self, outcome: Outcome) -> None:
        """Compare a step with what the run recorded of it."""
        then = self.history.steps.get(outcome.step)
        self.last_compared = then is not None
        if then is None:
            return
        for name, words in FIGURES.items():
            before, now = getattr(then, name), getattr(outcome, name)
            if before != now and not (math.isnan(before) and math.isnan(now)):
                why = "; ".join(self.here) or "nothing that was recorded is different here"
                raise Unequal(
                    f"step {outcome.step} is not what it was: {words} {before!r} then, {now!r} "
                    f"now ({why})"
                )
        self.compared += 1

    def _recipe(self, leg: Leg) -> Any:
        return as_it_was(leg.start).model_copy(update=self.changes)

    def _at_most(self) -> str:
        return "" if self.condition is None else "at most "

    def _command(self) -> tuple[object, ...]:
        wanted = ("--step", self.end)
        if self.condition is not None:
            wanted = ("--first", self.condition.text)
        return (self.history.folder, *wanted)


def _newest(folder: Path) -> Path:
    """Return the checkpoint that was just written in a folder."""
    return (folder / "checkpoints" / "last").resolve()
