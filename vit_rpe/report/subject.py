"""The subject of a report: one model, its answers to a set, the set, and perhaps its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from vit_rpe.data import Batch, Loader, Modality, Shards
from vit_rpe.messages import cut
from vit_rpe.training import (
    Evaluation,
    class_names,
    class_order,
    evaluation_loader,
    evaluation_of,
    find_model,
    is_average,
    load_model,
    read_exhibits,
    validation_shards,
    visible,
)

from .run import RunRecord

Result = TypeVar("Result")


@dataclass
class Subject:
    """One column of a report. What could not be had is None, and `notes` say why."""

    name: str
    run: RunRecord | None = None
    model: nn.Module | None = None
    model_words: str = ""  # which weights these are
    loader: Loader | None = None
    evaluation: Evaluation | None = None
    answers_words: str = ""  # whose answers these are
    classes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: list[int] | None = None  # outputs of the model by class, where they differ
    starts: list[dict[str, Any]] = field(default_factory=list)  # of what is no run: as in a log

    def show_model(self, model: nn.Module, shards: Shards, modality: Modality) -> None:
        """Take a model, and samples of its set as it gets them: one view of each."""
        self.model = model.cpu().eval()
        count = int(model.num_classes)  # pyright: ignore
        single = modality.single_view()
        self.loader = evaluation_loader(shards, count, self.config, 1, modality=single)
        self.order = class_order(class_names(model), count, shards, by_name=True)

    @property
    def config(self) -> dict[str, Any]:
        """timm's data config of the model."""
        return resolve_model_data_config(self.model)  # pyright: ignore

    @property
    def all_classes(self) -> list[str]:
        """The names of all classes that are named or answered, by number."""
        answered = 0 if self.evaluation is None else self.evaluation.num_classes
        return [self.class_name(number) for number in range(max(answered, len(self.classes)))]

    def class_name(self, number: int) -> str:
        """Return the name of a class, or its number where it has none."""
        return self.classes[number] if number < len(self.classes) else str(number)

    def attempt(self, what: str, call: Callable[[], Result]) -> Result | None:
        """Call; an error becomes a note: a report shows what there is."""
        try:
            return call()
        except Exception as error:  # models, data and files of others raise many kinds
            self.notes.append(f"{what}: {cut(error) or type(error).__name__}")
            return None

    def pick(self, numbers: list[int]) -> tuple[Batch, Tensor]:
        """Return samples by number as the model gets them, and their pixels in bytes.

        One view of each: images (B, 3, H, W), clips (B, 3, T, H, W).
        """
        assert self.loader is not None
        batch = self.loader.pick(numbers)
        return batch, visible(batch.images, self.config)


def subject_of_run(run: RunRecord) -> Subject:
    """Gather the best model of a run, its data, and the answers that it kept."""
    subject = Subject(run.name, run, notes=list(run.notes))
    subject.attempt("the model", lambda: _load_model(subject, run))
    if subject.model is not None:
        subject.attempt("the data", lambda: _open_data(subject, run))
    subject.attempt("the evaluation", lambda: _find_answers(subject, run))
    return subject


def answers_of(run: RunRecord) -> Subject:
    """Gather the answers and the classes of a run; its data are not opened."""
    subject = Subject(run.name, run)
    _load_model(subject, run)
    _find_answers(subject, run)
    return subject


def _load_model(subject: Subject, run: RunRecord) -> None:
    folder = find_model(run.folder)
    subject.model = load_model(folder)[1].eval()
    subject.classes = class_names(subject.model)
    average = is_average(folder)
    name = (folder.parent if average else folder).name
    subject.model_words = f"{name}, {'average of the weights' if average else 'weights'}"


def _open_data(subject: Subject, run: RunRecord) -> None:
    shards, modality = validation_shards(run.recipe)
    if shards is None:
        return
    assert subject.model is not None
    subject.classes = subject.classes or list(shards.classes)
    subject.show_model(subject.model, shards, modality)


def _find_answers(subject: Subject, run: RunRecord) -> None:
    """Take the answers of the best epoch that kept its answers, or else of the last."""
    exhibits, wrong = read_exhibits(run.folder, "answers")
    subject.notes += wrong
    column, sign = run.recipe.best_of, -1 if run.recipe.eval_metric == "loss" else 1
    by_epoch = {row.get("epoch"): row.get(column) for row in run.history}
    scores = [(sign * (by_epoch.get(e.epoch) or 0.0), -e.epoch) for e in exhibits]
    if not exhibits:
        return
    best = exhibits[scores.index(max(scores))]
    subject.evaluation = evaluation_of(best)
    weights = "average of the weights" if best.values.get("model") == "ema" else "weights"
    part = run.recipe.validation
    subject.answers_words = f"epoch {best.epoch}, {weights}, on {part}"


def check_labels(result: Evaluation, batch: Batch) -> None:
    """Refuse data that are not those of the answers: pictures would be of other samples."""
    of = dict(zip(result.samples.tolist(), result.labels.tolist(), strict=True))
    found = zip(batch.sample_index.tolist(), batch.labels.tolist(), strict=True)
    if any(label >= 0 and of.get(sample, label) != label for sample, label in found):
        raise ValueError("the labels are not those of the evaluation: other data lie there now")
