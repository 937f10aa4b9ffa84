"""Exact evaluation: a row for every sample, each counted once, on any number of processes.

Ranks write down what the model said about each sample, by the sample's number. The rows of all are
brought together, must be the numbers 0, 1, ... of the shard index, each once, and every figure is
computed from them in this order: so no figure depends on who evaluated what.

Of a video the model may see several views, and several samples may be clips of one video: their
probabilities are averaged, first over the views of a sample, then over the samples of a video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from vit_rpe.data import PADDING, Batch, Loader

from .errors import Miscounted

BINS = 15  # of the calibration error


class Interrupted(Exception):
    """Evaluation was asked to stop; it starts anew when the run goes on."""


@dataclass(frozen=True)
class Evaluation:
    """What a model said about each good sample of a set, or video, in order; `bad` are left out."""

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    rank: NDArray[np.int64]  # of the true class: 0 is right, below 5 is in the top five
    losses: NDArray[np.float64]
    num_classes: int
    bad: int
    seconds: float

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of timm: loss, and top-1 and top-5 in per cent."""
        return {
            "loss": _mean(self.losses),
            "top1": 100 * _mean(self.rank < 1),
            "top5": 100 * _mean(self.rank < 5),
        }

    def confusion(self) -> NDArray[np.int64]:
        """Samples by (true class, predicted class)."""
        places = self.labels * self.num_classes + self.predicted
        counts = np.bincount(places, minlength=self.num_classes**2)
        return counts.reshape(self.num_classes, self.num_classes)

    def per_class(self) -> NDArray[np.float64]:
        """Accuracy of each class in per cent; NaN for one without samples."""
        table = self.confusion()
        with np.errstate(invalid="ignore"):
            return 100 * table.diagonal() / table.sum(1)

    def calibration_error(self) -> float:
        """Mean distance of confidence and accuracy over equal bins of confidence."""
        place = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        gap = np.bincount(place, self.confidence - (self.rank < 1), minlength=BINS)
        return float(np.abs(gap).sum() / max(self.count, 1))


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
    videos = loader.modality.groups(loader.shards)
    rows = observe(
        model,
        loader.epoch(0),
        accelerator,
        stop=stop,
        channels_last=channels_last,
        whole=videos is not None,
    )
    return _evaluation(rows, loader, num_classes, perf_counter() - start, videos)


def observe(
    model: nn.Module,
    batches: Iterable[Batch],
    accelerator: Accelerator,
    *,
    stop: Callable[[], bool] = lambda: False,
    channels_last: bool = False,
    whole: bool = False,
) -> NDArray[np.float64]:
    """A row for each place of these batches, of all ranks; `whole` ones end with all logits."""
    rows: list[Tensor] = []
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
                rows.append(_rows(_seen(model, images), batch, whole).cpu())
    finally:
        model.train(was_training)
    return _gathered(torch.cat(rows), accelerator)


def _seen(model: nn.Module, images: Tensor) -> Tensor:
    """Logits (B, K); of several views the logarithm of their mean probability."""
    if images.ndim < 6:
        return model(images).float()
    logits = model(images.flatten(0, 1)).float().unflatten(0, images.shape[:2])
    return _mean_probability(logits, 1)


def _mean_probability(logits: Tensor, dim: int) -> Tensor:
    """The logarithm of the mean of probabilities, which are given by logits."""
    return logits.log_softmax(-1).logsumexp(dim) - math.log(logits.shape[dim])


def _rows(logits: Tensor, batch: Batch, whole: bool = False) -> Tensor:
    """(B, 7): sample, whether it is good, label, prediction, confidence, rank, loss."""
    where = [x.to(logits.device).double() for x in (batch.sample_index, batch.valid, batch.labels)]
    columns = [torch.stack(where, 1), _judged(logits, batch.labels)]
    return torch.cat([*columns, logits.double()] if whole else columns, 1)


def _judged(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, 4): prediction, its confidence, the rank of the label, loss."""
    logits = logits.nan_to_num(nan=-torch.inf)  # a model that says NaN is wrong, not absent
    labels = labels.clamp(min=0)
    own = logits.gather(1, labels[:, None])
    above = (logits > own).sum(1)
    # of equal logits the first counts, as in argmax: a model that says nothing knows nothing
    ties = (logits == own) & (torch.arange(logits.shape[1], device=logits.device) < labels[:, None])
    top = logits.argmax(1)
    columns = (
        top,
        F.softmax(logits, 1).gather(1, top[:, None])[:, 0].nan_to_num(),
        above + ties.sum(1),
        F.cross_entropy(logits, labels, reduction="none"),
    )
    return torch.stack([column.double() for column in columns], 1)


def _gathered(rows: Tensor, accelerator: Accelerator) -> NDArray[np.float64]:
    if accelerator.num_processes > 1:
        rows = accelerator.gather(rows.to(accelerator.device)).cpu()  # pyright: ignore
    return rows.numpy()


def _evaluation(
    rows: NDArray[np.float64],
    loader: Loader,
    num_classes: int,
    seconds: float,
    videos: NDArray[np.int64] | None = None,
) -> Evaluation:
    rows = rows[rows[:, 0] != PADDING]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    check_counted(rows[:, 0].astype(np.int64), loader.shards.num_samples)
    good = rows[rows[:, 1] == 1]
    bad = len(rows) - len(good)
    loader.bad.check(bad)  # those of all ranks
    if videos is not None:
        good = _by_video(good, videos)
    return Evaluation(
        labels=good[:, 2].astype(np.int64),
        predicted=good[:, 3].astype(np.int64),
        confidence=good[:, 4],
        rank=good[:, 5].astype(np.int64),
        losses=good[:, 6],
        num_classes=num_classes,
        bad=bad,
        seconds=seconds,
    )


def _by_video(rows: NDArray[np.float64], videos: NDArray[np.int64]) -> NDArray[np.float64]:
    """A row for each video that has a good clip, by the mean of what was said about its clips."""
    order = np.argsort(videos[rows[:, 0].astype(np.int64)], kind="stable")
    rows = rows[order]
    ids = videos[rows[:, 0].astype(np.int64)]
    parts = np.split(rows, np.flatnonzero(np.diff(ids)) + 1) if len(rows) else []
    said = [_mean_probability(torch.from_numpy(part[:, 7:]), 0) for part in parts]
    if not said:
        return rows[:, :7]
    first = np.stack([part[0, :3] for part in parts])
    judged = _judged(torch.stack(said), torch.from_numpy(first[:, 2]).long())
    return np.concatenate([first, judged.numpy()], 1)


def check_counted(samples: NDArray[np.int64], num_samples: int) -> None:
    """Every sample of the index once: what is missing, or there twice, would bend every figure."""
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
