"""A whole study: checked, run, reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_rpe.data import FolderLock
from vit_rpe.training import Recipe

from .check import Setting, check_settings
from .comparisons import rows_of
from .file import Study
from .live import Board, hours
from .process import TrialProcess
from .queue import STOPPED, StopRequest, work_off
from .record import SIZES, record_of
from .results import Record, Results, last
from .trials import (
    Trial,
    arguments_of,
    check_different,
    check_overrides,
    recipe_of,
    trials_of,
)


@dataclass(frozen=True)
class Planned:
    """A study that was checked, with the recipe of each trial."""

    study: Study
    trials: list[Trial]
    recipes: dict[Trial, Recipe]
    results: Results
    overrides: tuple[str, ...]
    runs: Path

    def folder(self, trial: Trial) -> Path:
        return self.runs / trial.name

    def left(self) -> list[Trial]:
        return [trial for trial in self.trials if not self.results.is_complete(trial)]


def plan_study(study: Study, output: Path, runs: Path, overrides: Sequence[str] = ()) -> Planned:
    """Check all that can be known without building anything."""
    check_overrides(overrides)
    trials = trials_of(study)
    rows_of(study, trials)
    runs = runs / study.name
    recipes = {trial: recipe_of(study, trial, overrides, runs) for trial in trials}
    check_different(study, recipes)
    results = Results(output, study)
    results.check_settings(recipes)
    return Planned(study, trials, recipes, results, tuple(overrides), runs)


def run_study(
    plan: Planned,
    jobs: int = 2,
    nice: int = 0,
    start: Callable[[Trial], Any] | None = None,
) -> tuple[list[Trial], bool]:
    """Run what is left of a study; return the trials that failed, and whether it was stopped.

    `start` begins a trial; by default as processes that train and evaluate it.
    """
    left = plan.left()
    with ExitStack() as stack:
        if left:
            stack.enter_context(FolderLock(plan.runs, "study"))
        settings = check_settings(plan.study, {trial: plan.recipes[trial] for trial in left})
        os.nice(nice)
        watcher = Recorder(plan, settings, jobs)
        watcher.begin(left)
        stop = stack.enter_context(StopRequest())
        failed, stopped = work_off(left, jobs, start or watcher.start, watcher, stop)
        watcher.board.line(watcher.board.summary())
        return failed, stopped


class Recorder:
    """Starts trials, writes down their results and shows how far they are."""

    def __init__(self, plan: Planned, settings: dict[str, Setting], jobs: int):
        self.plan, self.settings = plan, settings
        done = [
            plan.results.find(trial) for trial in plan.trials if plan.results.is_complete(trial)
        ]
        seconds = [each["seconds"] for each in done if each is not None]
        steps = {name: each.steps for name, each in settings.items()}
        self.board = Board(plan.trials, seconds, steps, jobs)

    def begin(self, left: Sequence[Trial]) -> None:
        """Say what is about to happen, and with how many seeds."""
        study = self.plan.study
        seeds = sorted({trial.seed for trial in self.plan.trials})
        part = f"{study.val_fraction:g} of " if study.val_fraction else ""
        self.board.line(
            f"{study.name}: {len(self.plan.trials)} trials, {len(left)} left; seeds "
            f"{', '.join(map(str, seeds))}; figures of {part}{study.split} after the last epoch; "
            f"results in {self.plan.results.path}"
        )

    def start(self, trial: Trial) -> TrialProcess:
        plan, folder = self.plan, self.plan.folder(trial)
        given = arguments_of(plan.study, trial, plan.overrides, plan.runs)
        commands = [["train", "--recipe", str(plan.study.base), *given]]
        if plan.study.sizes:
            commands.append(self._evaluation(trial, folder))
        return TrialProcess(commands, folder)

    def _evaluation(self, trial: Trial, folder: Path) -> list[str]:
        """Return the command that evaluates the last weights at other sizes."""
        study, recipe = self.plan.study, self.plan.recipes[trial]
        part = ["--val-fraction", f"{study.val_fraction:g}"] if study.val_fraction else []
        return [
            *("evaluate", "--checkpoint", str(folder / "checkpoints" / "last"), "--no-ema"),
            *("--data", recipe.data_dir, "--split", study.split, *part, "--workers", "0"),
            *("--img-size", ",".join(map(str, study.sizes)), "--json", str(folder / SIZES)),
        ]

    def started(self, trial: Trial, running: Any) -> None:
        self.board.line(f"{trial.name}: started, {running.log}")

    def ended(self, trial: Trial, running: Any, code: int) -> bool:
        """Write the line of a finished trial; say why another has ended."""
        if code == STOPPED:
            self.board.line(f"{trial.name}: stopped, and saved")
            return False
        if code != 0:
            self.board.failed += 1
            self.board.line(f"{trial.name}: FAILED with exit code {code}: {running.tail()}")
            return False
        plan, setting = self.plan, self.settings[trial.setting]
        record = record_of(plan.study, trial, plan.recipes[trial], setting, running.folder)
        plan.results.add(record)
        self.board.seconds.append(record["seconds"])
        self.board.line(f"{_said(record, plan.study)}; {self.board.summary()}")
        return True

    def look(self, running: dict[Trial, Any]) -> None:
        self.board.look(running)


def _said(record: Record, study: Study) -> str:
    value = f"{study.metric} {last(record, study):.2f}"
    return f"{record['trial']}: {value} after {hours(record['seconds'])}"
