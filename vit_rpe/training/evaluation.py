"""Exact evaluation: a row for every sample, each counted once, on any number of processes.

Each rank writes down what the model said about its samples, by the sample's number. The rows of all
ranks are brought together, must be the numbers 0, 1, ... of the shard index, each once, and every
figure is computed from them in this order: so no figure depends on which rank evaluated what.

The model may see several views of a video, and several samples may be clips of one video: their
probabilities are averaged, first over the views of a sample, then over the samples of a video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from vit_rpe.data import PADDING, Batch, Loader

from .distributed import gather_rows
from .errors import Miscounted

BINS = 15  # of the calibration error
ROW = (  # what is known about one sample; `label_rank` is the position of the label, best first
    ("sample", np.int64),
    ("good", np.bool_),
    ("label", np.int64),
    ("predicted", np.int64),
    ("confidence", np.float64),
    ("label_rank", np.int64),
    ("loss", np.float64),
)
Rows = NDArray[Any]  # structured: the fields of ROW, and `logits` where samples are averaged


class Interrupted(Exception):
    """The early end of an evaluation; it starts over when the run is resumed."""


@dataclass(frozen=True)
class Evaluation:
    """The answers of a model to all good samples (or videos) of a set, in order."""

    samples: NDArray[np.int64]  # their numbers in the set; of a video that of its first sample
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    label_rank: NDArray[np.int64]  # 0: the label came first; below 5: it is in the top five
    losses: NDArray[np.float64]
    num_classes: int
    bad: int
    seconds: float

    @property
    def count(self) -> int:
        """The number of good samples or videos."""
        return len(self.labels)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that timm reports: the loss, and top-1 and top-5 in percent."""
        return {
            "loss": _mean(self.losses),
            "top1": 100 * _mean(self.label_rank < 1),
            "top5": 100 * _mean(self.label_rank < 5),
        }

    def confusion(self) -> NDArray[np.int64]:
        """Count samples by (true class, predicted class)."""
        cells = self.labels * self.num_classes + self.predicted
        counts = np.bincount(cells, minlength=self.num_classes**2)
        return counts.reshape(self.num_classes, self.num_classes)

    def per_class(self) -> NDArray[np.float64]:
        """Return the accuracy of each class in percent; NaN for one without samples."""
        table = self.confusion()
        with np.errstate(invalid="ignore"):
            return 100 * table.diagonal() / table.sum(1)

    def calibration(self) -> NDArray[Any]:
        """Sum over equal bins of confidence: samples, their confidence, and how many are right."""
        bins = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        columns = (np.ones(self.count), self.confidence, self.label_rank < 1)
        sums = [np.bincount(bins, column, minlength=BINS) for column in columns]
        return np.stack(sums, 1).astype(float)

    def calibration_error(self) -> float:
        """Return the mean distance of confidence and accuracy over equal bins of confidence."""
        _, confidence, right = self.calibration().T
        return float(np.abs(confidence - right).sum() / max(self.count, 1))


def evaluate(
    model: nn.Module,
    loader: Loader,
    accelerator: Accelerator,
    num_classes: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    channels_last: bool = False,
) -> Evaluation:
    """Evaluate all samples of a loader whose plan is neither shuffled nor cut off.

    `stop` is asked before every batch, and must say the same on all ranks.
    """
    start = perf_counter()
    groups = loader.modality.groups(loader.shards)
    rows = predict(
        model,
        loader.epoch(0),
        accelerator,
        stop=stop,
        channels_last=channels_last,
        with_logits=groups is not None,
    )
    return _evaluation(rows, loader, num_classes, perf_counter() - start, groups)


def predict(
    model: nn.Module,
    batches: Iterable[Batch],
    accelerator: Accelerator,
    *,
    stop: Callable[[], bool] = lambda: False,
    channels_last: bool = False,
    with_logits: bool = False,
) -> Rows:
    """Return one row per sample of these batches, gathered from all ranks, padding included."""
    rows: list[Rows] = []
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), accelerator.autocast():
            for batch in batches:
                if stop():
                    raise Interrupted
                images = batch.images
                if channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                rows.append(_rows(class_logits(model, images), batch, with_logits))
    finally:
        model.train(was_training)
    return gather_rows(accelerator, np.concatenate(rows))


def class_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return logits (B, K); for several views the logarithm of their mean probability."""
    if images.ndim < 6:
        return model(images).float()
    logits = model(images.flatten(0, 1)).float().unflatten(0, images.shape[:2])
    return _mean_probability(logits, 1)


def _mean_probability(logits: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the mean of the probabilities that logits give."""
    return logits.log_softmax(-1).logsumexp(dim) - math.log(logits.shape[dim])


class Judgment(NamedTuple):
    """The answers of a model to a batch, compared with the labels; each is (B,)."""

    predicted: Tensor
    confidence: Tensor
    label_rank: Tensor
    loss: Tensor


def _judge(logits: Tensor, labels: Tensor) -> Judgment:
    logits = logits.nan_to_num(nan=-torch.inf)  # a model that says NaN is wrong, not absent
    labels = labels.clamp(min=0)
    own = logits.gather(1, labels[:, None])
    above = (logits > own).sum(1)
    # of equal logits the first counts, as in argmax: a model that says nothing knows nothing
    ties = (logits == own) & (torch.arange(logits.shape[1], device=logits.device) < labels[:, None])
    top = logits.argmax(1)
    return Judgment(
        top,
        F.softmax(logits, 1).gather(1, top[:, None])[:, 0].nan_to_num(),
        above + ties.sum(1),
        F.cross_entropy(logits, labels, reduction="none"),
    )


def _rows(logits: Tensor, batch: Batch, with_logits: bool = False) -> Rows:
    """Return the rows of one batch, with all logits if samples are to be averaged."""
    more = [("logits", np.float64, (logits.shape[1],))] if with_logits else []
    rows = np.zeros(len(logits), [*ROW, *more])
    fields = _judge(logits, batch.labels)._asdict()
    fields.update(sample=batch.sample_index, good=batch.valid, label=batch.labels)
    if with_logits:
        fields["logits"] = logits
    for name, values in fields.items():
        rows[name] = values.cpu().numpy()
    return rows


def _evaluation(
    rows: Rows,
    loader: Loader,
    num_classes: int,
    seconds: float,
    groups: NDArray[np.int64] | None,
) -> Evaluation:
    rows = rows[rows["sample"] != PADDING]
    rows = rows[np.argsort(rows["sample"], kind="stable")]
    check_counted(rows["sample"], loader.shards.num_samples)
    good = rows[rows["good"]]
    bad = len(rows) - len(good)
    loader.bad.check(bad)  # those of all ranks
    if groups is not None:
        good = _averaged(good, groups)
    return Evaluation(
        samples=good["sample"],
        labels=good["label"],
        predicted=good["predicted"],
        confidence=good["confidence"],
        label_rank=good["label_rank"],
        losses=good["loss"],
        num_classes=num_classes,
        bad=bad,
        seconds=seconds,
    )


def _averaged(rows: Rows, groups: NDArray[np.int64]) -> Rows:
    """Return one row per group that has a good sample, by the mean of their probabilities."""
    if not len(rows):
        return rows
    rows = rows[np.argsort(groups[rows["sample"]], kind="stable")]
    starts = np.r_[0, np.flatnonzero(np.diff(groups[rows["sample"]])) + 1]
    logits = torch.from_numpy(rows["logits"].copy()).tensor_split(starts[1:].tolist())
    means = torch.stack([_mean_probability(part, 0) for part in logits])
    first = rows[starts]
    for name, values in _judge(means, torch.from_numpy(first["label"].copy()))._asdict().items():
        first[name] = values.numpy()
    return first


def check_counted(samples: NDArray[np.int64], num_samples: int) -> None:
    """Refuse samples that are not those of the index, each once: every figure would be wrong."""
    counts = np.bincount(samples, minlength=num_samples)
    if len(counts) == num_samples and (counts == 1).all():
        return
    missing, double = int((counts[:num_samples] == 0).sum()), int((counts > 1).sum())
    raise Miscounted(
        f"evaluation is not exact: of {num_samples} samples {missing} were missed and {double} "
        "counted more than once"
    )


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
