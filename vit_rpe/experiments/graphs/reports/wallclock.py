"""Report the lines of the table of accuracies within a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...study.statistics import Estimate, estimate
from .. import paper
from ..cells import Record
from ..tables import wallclock
from .figures import Series, draw_bars
from .summary import Line, Table, chosen, levels_of, quoted, said

TITLE = "Accuracy within GKAT's time"
ABOUT = (
    f"Test accuracy in percent of each model, stopped when it has used the processor time of "
    f"GKAT's first {wallclock.EPOCHS} epochs; in brackets the paper's. Time is that of one thread "
    "of a CPU, validation after each epoch included; walks, and the matrices that the exact kernel "
    "takes, are made before."
)


def tables(records: Sequence[Record]) -> list[Table]:
    """Return accuracy, and how many epochs fit into the time."""
    sets = levels_of(records, "set")
    accuracy: list[Line] = []
    epochs: list[Line] = []
    for model in _models(records):
        line, count = {"model": model}, {"model": model}
        for name in sets:
            value = _mean(records, name, model, "test", 100.0)
            figure = paper.CLOCK[name].get(model)
            beside = f" [{quoted(figure)}]" if figure is not None else ""
            line[f"{name} [paper]"] = said(value, len(wallclock.SEEDS)) + beside
            spent = _mean(records, name, model, "epochs", 1.0)
            count[name] = f"{spent.mean:.0f}" if spent else "-"
        accuracy.append(line)
        epochs.append(count)
    if not accuracy:
        return []
    return [Table("Accuracy", accuracy), Table("Epochs in the same time", epochs)]


def _models(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(model for record in records for model in record["result"]))


def _mean(
    records: Sequence[Record], name: str, model: str, what: str, unit: float
) -> Estimate | None:
    runs = chosen(records, set=name)
    values = [unit * r["result"][model][what] for r in runs if model in r["result"]]
    return estimate(values) if values else None


def draw(axes: Any, records: Sequence[Record]) -> None:
    """Draw the accuracy of all models on all sets."""
    names = levels_of(records, "set")
    series = [
        Series.of(m, names, lambda n, m=m: _mean(records, n, m, "test", 100.0))
        for m in _models(records)
    ]
    marks = {(n, m): v for n, row in paper.CLOCK.items() for m, v in row.items() if n in names}
    draw_bars(axes, series, names, "test accuracy, %", f"{TITLE}; dashed: the paper", marks)
