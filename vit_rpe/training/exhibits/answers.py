"""Answers of a model to the samples of an evaluation, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..evaluation import Evaluation
from .files import Exhibit

COLUMNS = {name: "iu" for name in ("samples", "labels", "predicted", "label_rank")}
COLUMNS |= {name: "f" for name in ("confidence", "losses")}  # kinds of numbers, as numpy says


def answers_exhibit(epoch: int, prefix: str, result: Evaluation) -> Exhibit:
    """Keep what an evaluation said about each sample; `prefix` tells the weights, or the average.

    Confidence and loss are float64: metrics computed from them are those of the evaluation.
    """
    tensors = {name: torch.from_numpy(np.array(getattr(result, name))) for name in COLUMNS}
    values = {"model": prefix, "bad": result.bad, "num_classes": result.num_classes}
    return Exhibit("answers", epoch, tensors, {**values, "seconds": result.seconds})


def evaluation_of(exhibit: Exhibit) -> Evaluation:
    """Return the evaluation that an exhibit keeps; ValueError if it is not one."""
    try:
        columns = {name: exhibit.tensors[name].numpy() for name in COLUMNS}
        numbers = {name: int(exhibit.values[name]) for name in ("bad", "num_classes")}
        seconds = float(exhibit.values["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the answers of epoch {exhibit.epoch} are damaged: {error!r}") from None
    classes, count = numbers["num_classes"], len(columns["samples"])
    named = np.concatenate([columns["labels"], columns["predicted"]])
    if any(column.dtype.kind not in COLUMNS[name] for name, column in columns.items()):
        raise ValueError(f"the answers of epoch {exhibit.epoch} are numbers of other kinds")
    if any(column.shape != (count,) for column in columns.values()):
        raise ValueError(f"the answers of epoch {exhibit.epoch} have columns of several lengths")
    if named.size and not 0 <= named.min() <= named.max() < classes:
        raise ValueError(f"the answers of epoch {exhibit.epoch} name classes that are not there")
    values: dict[str, Any] = {**columns, **numbers, "seconds": seconds}
    return Evaluation(**values)
