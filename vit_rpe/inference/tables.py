"""Predictions as a table for people, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from itertools import zip_longest

from vit_rpe.messages import printable

from .predictions import Prediction

COLUMNS = ("file", "rank", "class", "index", "probability", "error")


def as_table(predictions: Sequence[Prediction]) -> str:
    """Return a line for each file: its name, then classes and percentages, the likeliest first."""
    first = max((len(printable(each.file)) for each in predictions), default=0)
    guesses = [_cells(each) for each in predictions]
    widths = [max(map(len, column)) for column in zip_longest(*guesses, fillvalue="")]
    lines: list[str] = []
    for each, cells in zip(predictions, guesses, strict=True):
        said = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)]
        bad = [] if each.error is None else [f"bad: {printable(each.error)}"]
        lines.append("  ".join([f"{printable(each.file):<{first}}", *said, *bad]).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _cells(prediction: Prediction) -> list[str]:
    return [f"{printable(g.name)} {percent(g.probability)}" for g in prediction.guesses]


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Return a row for each file and rank, and one with the error of each bad file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in predictions:
        for rank, guess in enumerate(each.guesses, 1):
            writer.writerow((each.file, rank, guess.name, guess.index, guess.probability, ""))
        if each.error is not None:
            writer.writerow((each.file, "", "", "", "", each.error))
    return text.getvalue()


def as_json(predictions: Sequence[Prediction]) -> str:
    """Return a list with an object for each file, its predictions or its error."""
    return json.dumps([_plain(each) for each in predictions], indent=1) + "\n"


def _plain(prediction: Prediction) -> dict[str, object]:
    if prediction.error is not None:
        return {"file": prediction.file, "error": prediction.error}
    guesses = [
        {"class": g.name, "index": g.index, "probability": g.probability}
        for g in prediction.guesses
    ]
    return {"file": prediction.file, "predictions": guesses}


def percent(probability: float) -> str:
    """Return a probability for people: 97.3 %."""
    return f"{100 * probability:.1f} %"
