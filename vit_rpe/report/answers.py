"""A model's answers about a set: confusion, classes, calibration, and the samples to look at."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from vit_rpe.training import Evaluation

from .pictures import Album, fitted, still
from .subject import Subject, check_labels

CLASSES = 40  # of a confusion matrix that is shown
PER_CELL = 24  # samples of a cell that are listed
WORST, BEST = 24, 12  # samples that are shown
TOGETHER = 64  # samples that are decoded at once
THUMBNAIL = 96  # pixels
MOST_PICTURES = 1500


def answers(subject: Subject, album: Album) -> dict[str, Any] | None:
    """Return tables of an evaluation and its most telling samples, with pictures that fit."""
    result = subject.evaluation
    if result is None or not result.count:
        return None
    shown = shown_classes(result)
    cells, wanted = _cells(result, shown)
    order = np.argsort(-result.losses, kind="stable")
    worst, best = order[:WORST].tolist(), order[::-1][:BEST].tolist()
    wanted = list(dict.fromkeys([*worst, *best, *wanted]))
    pictures = subject.attempt("pictures of samples", lambda: _pictures(subject, wanted, album))
    place = {row: i for i, row in enumerate(wanted)}
    return {
        "words": subject.answers_words,
        "metrics": {**result.metrics, "calibration_error": result.calibration_error()},
        "count": result.count,
        "bad": result.bad,
        "shown": shown,
        "cells": [[t, p, n, [place[row] for row in rows]] for t, p, n, rows in cells],
        "perClass": class_rows(result),
        "calibration": result.calibration().round(6).tolist(),
        "samples": [_sample(result, row, (pictures or {}).get(row)) for row in wanted],
        "worst": [place[row] for row in worst],
        "best": [place[row] for row in best],
    }


def shown_classes(result: Evaluation) -> list[int]:
    """Return the classes of the matrix: all, or those most often taken for each other, in order."""
    count, wrong = result.num_classes, result.labels != result.predicted
    if count <= CLASSES:
        return list(range(count))
    either = np.sort([result.labels[wrong], result.predicted[wrong]], axis=0)
    pairs, times = np.unique(either[0] * count + either[1], return_counts=True)
    shown: set[int] = set()
    for pair in pairs[np.argsort(-times, kind="stable")].tolist():
        more = shown | {*divmod(pair, count)}
        if len(more) > CLASSES:
            break
        shown = more
    others = (number for number in range(count) if number not in shown)
    return sorted([*shown, *islice(others, CLASSES - len(shown))])


def _cells(result: Evaluation, shown: list[int]) -> tuple[list[Any], list[int]]:
    """Return the cells with samples, and the rows they list, errors first, worst first."""
    cells, errors, right = [], [], []
    inside = np.isin(result.labels, shown) & np.isin(result.predicted, shown)
    rows = np.flatnonzero(inside)
    if not len(rows):
        return [], []
    keys = result.labels[rows] * result.num_classes + result.predicted[rows]
    rows, keys = (each[np.lexsort((-result.losses[rows], keys))] for each in (rows, keys))
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True):
        true, predicted = divmod(int(keys[start]), result.num_classes)
        listed = rows[start:stop][:PER_CELL].tolist()
        cells.append((true, predicted, int(stop - start), listed))
        (right if true == predicted else errors).extend(listed)
    return cells, errors + right


def class_rows(result: Evaluation) -> list[list[Any]]:
    """Return for each class samples, accuracy, the class it is most often taken for, how often.

    Without the whole matrix: there may be tens of thousands of classes.
    """
    count, wrong = result.num_classes, result.labels != result.predicted
    total = np.bincount(result.labels, minlength=count).tolist()
    missed = np.bincount(result.labels[wrong], minlength=count).tolist()
    pairs = np.unique(result.labels[wrong] * count + result.predicted[wrong], return_counts=True)
    most: dict[int, tuple[int | None, int]] = {}
    for pair, times in zip(*(each.tolist() for each in pairs), strict=True):
        true, other = divmod(pair, count)
        if times > most.get(true, (None, 0))[1]:
            most[true] = (other, times)
    return [
        [n, round(100 * (n - bad) / n, 2) if n else None, *most.get(number, (None, 0))]
        for number, (n, bad) in enumerate(zip(total, missed, strict=True))
    ]


def _sample(result: Evaluation, row: int, picture: tuple[str, int | None] | None) -> list[Any]:
    """Return number, key, label, prediction, confidence, loss and picture of a sample."""
    key, image = picture or ("", None)
    numbers = (result.samples[row], result.labels[row], result.predicted[row])
    number, label, predicted = map(int, numbers)
    confidence, loss = float(result.confidence[row]), float(result.losses[row])
    return [number, key, label, predicted, round(confidence, 4), float(f"{loss:.5g}"), image]


def _pictures(
    subject: Subject, wanted: list[int], album: Album
) -> dict[int, tuple[str, int | None]]:
    """Return the key and the picture of samples, as long as pictures fit."""
    result, found = subject.evaluation, {}
    if subject.loader is None or result is None:
        return found
    rows = wanted[:MOST_PICTURES]
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        numbers = result.samples[part].tolist()
        batch, pixels = subject.pick(numbers)
        check_labels(result, batch)
        small = fitted(still(pixels), THUMBNAIL)
        for row, key, each in zip(part, batch.keys, small, strict=True):
            found[row] = (key, album.add(each))
        if album.refused:
            break
    return found
