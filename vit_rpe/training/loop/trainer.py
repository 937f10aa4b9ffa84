"""The training loop. The progress of a run is one integer, the step; all else follows from it.

What a step does is a function of the weights and of (seed, step): the samples, their augmentation
and mixing (vit_rpe.data), dropout and stochastic depth (learner.py). So a checkpoint holds no
generator, and a resumed run makes the same numbers as one that never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.data import Batch, FolderLock, Loader

from ..distributed import all_reduce_sum, any_rank, main_first, on_main, take_warnings
from ..errors import Stopped
from ..evaluation import Evaluation, Interrupted, evaluate
from ..exhibits.collector import Collector
from ..exhibits.origin import origin
from ..record.checkpoint import Checkpoints, Snapshot
from ..record.log import RunLog
from ..record.meter import meter_for
from ..record.model_card import ModelCard
from ..record.progress import Progress, RunState, read_progress
from ..record.progress_bar import ProgressBar, duration
from ..record.steps import Outcome
from ..run import Run
from .guard import Guard
from .learner import Learner
from .observer import Observer
from .pulse import Pulse
from .signals import StopFlag
from .task import Task


@dataclass(frozen=True)
class Step:
    """The outcome of a step, the same on all ranks."""

    loss: float
    gradient_norm: float
    finite: bool
    stop: bool


class Trainer:
    """A trainer of `net` on the batches of one loader, evaluated on those of another.

    `model_args` make the model again, for its checkpoints; `resume` is a checkpoint to resume from.
    """

    def __init__(
        self,
        run: Run,
        net: nn.Module,
        task: Task,
        loader: Loader,
        val_loader: Loader | None = None,
        *,
        model_args: dict[str, Any],
        resume: Path | None = None,
    ):
        self.recipe, self.accelerator, self.world_size = run.recipe, run.accelerator, run.world_size
        self.task, self.loader, self.val_loader = task, loader, val_loader
        self.model_args, self.steps_per_epoch = model_args, loader.plan.steps
        self.state, self.stop, self.pulse = RunState(), StopFlag(), Pulse(run.folder)
        self.lock: FolderLock | None = None
        self.observer: Observer | None = None
        progress, snapshot = None, None
        if resume is not None:
            progress, snapshot = read_progress(resume, loader.shards, run.recipe.data_dir)
        self.meter, self.card = meter_for(run, net), ModelCard.of(run, net, loader, val_loader)
        self.learner = Learner(run, net, self.steps_per_epoch, snapshot)
        self.checkpoints = Checkpoints(run.folder / "checkpoints")
        self.run, self.log, self.guard = run, RunLog(run), Guard(run)
        self.collector = Collector(run, net, self.log, self.steps_per_epoch, self.epochs)
        self.bar = ProgressBar(0, 0, active=False)
        self._log_position = 0
        if resume is not None and progress is not None and snapshot is not None:
            self._continue(resume, progress, snapshot)
        self._first_step = self.state.step

    def _continue(self, resume: Path, progress: Progress, snapshot: Snapshot) -> None:
        """Take up the state of a checkpoint; the weights are in the learner already."""
        self.state, self._log_position = progress.state, progress.log
        for epoch, row in enumerate(self.state.history, 1):
            row["epoch"] = epoch  # older checkpoints count from 0
            self.learner.schedule.after_epoch(epoch, row.get(self.recipe.best_of))
        self.learner.load_optimizer(snapshot)
        self.checkpoints.adopt(resume)

    @property
    def epochs(self) -> int:
        return self.learner.schedule.epochs

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    # --- the loop

    def fit(self, stop: StopFlag, pulse: Pulse, lock: FolderLock) -> RunState:
        """Train to the end. Raises Stopped after a signal, Diverged when the guard gives up."""
        state, recipe = self.state, self.recipe
        self.stop, self.pulse, self.lock = stop, pulse, lock
        stop.begin()
        with ExitStack() as stack:
            if self.checkpoints.written:  # tidy up what a killed process or a copy left undone
                on_main(self.accelerator, self._settle)
            self.open_logs(stack)
            if state.step == (state.epoch + 1) * self.steps_per_epoch:
                self._finish_epoch()  # it was stopped between the last step and the evaluation
            batches = stack.enter_context(closing(self._batches()))
            for batch, waited in batches:
                if self.advance(batch, waited).stop:
                    self._save_and_stop()
                elif state.step % self.steps_per_epoch == 0:
                    self._finish_epoch()
                elif self._is_due(recipe.recovery_interval):
                    self.save(f"step-{state.step:08d}")
        return state

    def advance(self, batch: Batch, waited: float) -> Step:
        """Make one step, count it and show it."""
        start = perf_counter()
        self._at("step")
        step = self.train_step(batch)
        self._count(batch, step, waited, perf_counter() - start)
        return step

    def train_step(self, batch: Batch) -> Step:
        """Compute gradients, let all ranks agree, and update the weights if all is finite."""
        learner, at = self.learner, self.state.step
        learner.schedule.at(at)
        images, targets = self.task.targets(batch)
        if at in self.collector.batch_steps:
            self.collector.batch(batch, images, targets)
        if self.observer is not None:
            self.observer.batch(batch, images, targets)
        loss = learner.backward(self.task, images, targets, at)
        if self.observer is not None:
            self.observer.gradients()
        step = self._agree(loss, learner.clip())
        learner.update(at, step.finite)
        skipped = not step.finite and not learner.scale_was_too_large(step.loss)
        outcome = Outcome(at + 1, step.loss, step.gradient_norm, learner.lr, skipped)
        self.log.write_step(outcome)
        if self.observer is not None:
            self.observer.outcome(outcome)
        if skipped:
            self.state.skipped += 1
            self.bar.line(f"step {at + 1} skipped: loss {step.loss}, gradient {step.gradient_norm}")
            self.log.write("skipped", at + 1, keys=batch.keys, loss=str(step.loss))
            self.guard.check(self.state.skipped, learner.net, batch, float(loss))
        return step

    def _agree(self, loss: Tensor, norm: Tensor) -> Step:
        """Exchange one message: the loss of all ranks, whether all is finite, whether to stop."""
        norm = norm.to(loss.device)
        trouble = ~(loss.isfinite() & norm.isfinite())
        asked = torch.tensor(self.stop.asked is not None, device=loss.device)
        values = torch.stack([value.double() for value in (loss, norm, trouble, asked)])
        loss_sum, norm_sum, troubles, stops = all_reduce_sum(self.accelerator, values)
        ranks = self.world_size
        return Step(loss_sum / ranks, norm_sum / ranks, finite=troubles == 0, stop=stops > 0)

    def _batches(self) -> Generator[tuple[Batch, float]]:
        """Yield the batches that are left of the run, and how long each kept us waiting."""
        batches: Any = self.loader.batches(self.state.step, self.total_steps)
        with closing(batches):
            while True:
                start = perf_counter()
                self._at("data of step")
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch, perf_counter() - start

    def _at(self, activity: str) -> None:
        """Tell the pulse; the first step may be slow, as it starts workers and compiles."""
        step = self.state.step
        self.pulse.at(f"{activity} {step + 1}", slow=step == self._first_step)

    # --- the end of an epoch

    def _finish_epoch(self) -> None:
        state = self.state
        row: dict[str, Any] = {"epoch": state.epoch + 1}
        row["train_loss"] = state.loss_sum / state.loss_steps if state.loss_steps else math.nan
        results = self._evaluated(state.epoch + 1)
        for prefix, result in results.items():
            row.update({f"{prefix}_{name}": value for name, value in result.metrics.items()})
        row["lr"] = self.learner.lr
        metric = self.count_epoch(row)
        self.log.write("epoch", state.step, **row, evaluated=self.recipe.validation)
        sign = -1 if self.recipe.eval_metric == "loss" else 1
        score = None if metric is None else sign * metric
        best = score is not None and all(score > other for _, other in state.ranking)
        shown = f"{self._epoch_in_words(row)}{', best' if best else ''}"
        self.bar.line(f"epoch {state.epoch}/{self.epochs}: {shown}")
        self.save(f"epoch-{state.epoch:04d}", score)
        self.log.write_epochs(state.history)  # of which all rows are in a checkpoint
        deciding = self.recipe.best_of.partition("_")[0]
        self.collector.answers(state.epoch, results, deciding, state.ranking)
        self.collector.masks(state.epoch, state.step)

    def count_epoch(self, row: dict[str, Any]) -> float | None:
        """Go on to the next epoch, with the figures of this one; return the one that decides."""
        state, metric = self.state, row.get(self.recipe.best_of)
        self.learner.schedule.after_epoch(state.epoch + 1, metric)
        state.history.append(row)
        state.epoch, state.loss_sum, state.loss_steps, state.skipped = state.epoch + 1, 0.0, 0, 0
        return metric

    def _epoch_in_words(self, row: dict[str, Any]) -> str:
        """Return the figures of an epoch that fit into a line, as summary.csv names them."""
        wanted = ("train_loss", "eval_loss", "eval_top1", f"eval_{self.recipe.eval_metric}")
        shown = [name for name in dict.fromkeys((*wanted, self.recipe.best_of)) if name in row]
        return f"{', '.join(f'{name} {row[name]:.4g}' for name in shown)}, lr {row['lr']:.2e}"

    def _evaluated(self, epoch: int) -> dict[str, Evaluation]:
        """Evaluate the model and its average, by their prefixes, if an evaluation is due."""
        if not self.is_evaluated(epoch):
            return {}
        assert self.val_loader is not None
        found: dict[str, Evaluation] = {}
        try:
            for prefix, model in self.learner.models().items():
                found[prefix] = evaluate(
                    model,
                    self.val_loader,
                    self.accelerator,
                    self.task.num_classes,
                    stop=self._stop_in_evaluation,
                    channels_last=self.recipe.channels_last,
                )
        except Interrupted:
            self._save_and_stop()
        return found

    def is_evaluated(self, epoch: int) -> bool:
        """Return whether there is an evaluation after an epoch; epochs count from 1."""
        due = epoch == self.epochs or epoch % self.recipe.val_interval == 0
        return self.val_loader is not None and due

    def _stop_in_evaluation(self) -> bool:
        self.pulse.at(f"the evaluation after step {self.state.step}")
        return any_rank(self.accelerator, self.stop.asked is not None)

    # --- checkpoints

    def _save_and_stop(self) -> None:
        self.save(f"step-{self.state.step:08d}")
        raise Stopped(f"stopped by a signal after step {self.state.step}, and saved")

    def save(self, name: str, score: float | None = None) -> None:
        """Save a checkpoint; one with a score takes part in the ranking."""
        self.pulse.at(f"the checkpoint after step {self.state.step}", slow=True)
        snapshot = self.learner.snapshot()
        # no rank leaves before all is on disk
        on_main(self.accelerator, lambda: self._write(snapshot, name, score))

    def _write(self, snapshot: Snapshot, name: str, score: float | None) -> None:
        if self.lock is not None:
            self.lock.check()
        state, name = self.state, self.checkpoints.free(name)
        if score is not None and not math.isnan(score):
            ranking = sorted([*state.ranking, (name, score)], key=lambda entry: -entry[1])
            state.ranking = ranking[: self.recipe.checkpoint_hist]
        shards = self.loader.shards
        progress = Progress(state, self.log.position(), list(shards.lengths), shards.digest)
        net, args = self.learner.net, self.model_args
        is_best = score is not None and state.ranking[:1] == [(name, score)]
        cards = self.card.texts(state.history[-1]) if is_best else None
        self.checkpoints.save(name, asdict(progress), snapshot, net, args, cards)
        self._settle()

    def _settle(self) -> None:
        self.checkpoints.settle([name for name, _ in self.state.ranking])

    # --- logs and the progress bar

    def open_logs(self, stack: ExitStack) -> None:
        """Open the log and the progress bar until the stack is closed."""
        state = self.state
        settings = self.recipe.model_dump() if self.recipe.log_wandb else None
        self.bar = ProgressBar(self.total_steps, state.step, self.accelerator.is_main_process)
        stack.callback(self.bar.close)
        stack.callback(self.log.close)
        position, history = self._log_position, state.history
        main_first(self.accelerator, lambda: self.log.open(state.step, position, history, settings))
        if self.accelerator.is_main_process:
            told = origin(self.run, self.learner.net, self.loader.shards.digest)
            self.log.write("start", state.step, **told, warnings=take_warnings())
        self.collector.begin(state.epoch, state.step)

    def _count(self, batch: Batch, step: Step, waited: float, seconds: float) -> None:
        state, meter = self.state, self.meter
        state.step += 1
        if step.finite:
            state.loss_sum += step.loss
            state.loss_steps += 1
        meter.add(seconds + waited, waited)
        epoch = f"epoch {batch.epoch + 1}/{self.epochs}"
        text = f"loss {step.loss:.4f}, lr {self.learner.lr:.2e}"
        where = f"{epoch}, step {state.step}/{self.total_steps}"
        if self._is_due(self.recipe.log_interval) or state.step == self.total_steps:
            values = {"loss": step.loss, "lr": self.learner.lr, "grad_norm": step.gradient_norm}
            self.log.write("train", state.step, epoch=batch.epoch + 1, **values, **meter.report())
            self.bar.step_line(f"{where}: {text}, {meter.text()}, {self._left()}")
        elif state.step == self._first_step + 1:
            self.bar.step_line(f"{where}: {text}, {seconds + waited:.2f} s for the first step")
        elif self.bar.is_silent:
            self.bar.step_line(f"{where}: {text}, {seconds + waited:.2f} s a step, {self._left()}")
        self.bar.update(epoch, f"{text}, {meter.text()}")

    def _left(self) -> str:
        return f"ETA {duration((self.total_steps - self.state.step) * self.meter.mean_step)}"

    def _is_due(self, interval: int) -> bool:
        return interval > 0 and self.state.step % interval == 0
