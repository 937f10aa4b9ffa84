"""Report the lines of the TU table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .. import paper
from ..cells import Record
from ..tables import tu
from .figures import Series, draw_bars
from .summary import NONE, Line, Table, chosen, mean_of, quoted, said, verdict

TITLE = "TU sets"
ABOUT = (
    "Test accuracy in percent, mean and deviation over ten outer folds of the means of three runs; "
    "public splits of Errica et al. (2020). Rows of settings are the paper's, chosen in each fold "
    f"by the inner holdout; patience {tu.PATIENCE} (the paper: 500). The learning rate was chosen "
    "by the inner holdout of the first fold, with a seed that is not reported. Other rivals are "
    "quoted from the paper."
)
RIVALS = ("DGCNN", "DiffPool", "ECC", "GraphSAGE", "RWNN")


def tables(records: Sequence[Record]) -> list[Table]:
    """Return accuracy beside the paper's, and what was chosen."""
    found = [_accuracy(records), _choices(records), _quoted()]
    return [table for table in found if table.lines]


def _accuracy(records: Sequence[Record]) -> Table:
    lines: list[Line] = []
    for name in tu.BASELINE:
        for model in tu.MODELS:
            runs = chosen(records, part="accuracy", set=name, model=model)
            if not runs:
                continue
            value = mean_of(runs, over="fold")
            label = f"baseline ({tu.BASELINE[name]})" if model == "baseline" else model
            lines.append(
                {
                    "set": name,
                    "model": label,
                    "here": said(value, 10),
                    "runs": f"{len(runs)} of {10 * len(tu.RUNS)}",
                    "paper": quoted(paper.TU[name].get(model)),
                    "paper less one deviation": _least(name) if model == "GKAT" else NONE,
                }
            )
    return Table("Accuracy", lines)


def verdicts(records: Sequence[Record]) -> list[str]:
    """Hold GKAT against the paper's mean less one deviation."""
    found = []
    for name in tu.BASELINE:
        runs = chosen(records, part="accuracy", set=name, model="GKAT")
        mean, deviation = paper.TU[name]["GKAT"]
        value = mean_of(runs, over="fold")
        done = len(runs) == 10 * len(tu.RUNS)
        met = value.mean >= mean - deviation if done and value is not None else None
        found.append(verdict(f"{name}, GKAT, at least {_least(name)}", said(value), met))
    return found


def _least(name: str) -> str:
    mean, deviation = paper.TU[name]["GKAT"]
    return f"{mean - deviation:.1f}"


def _choices(records: Sequence[Record]) -> Table:
    lines: list[Line] = []
    for name in tu.BASELINE:
        for model in tu.MODELS:
            runs = chosen(records, part="accuracy", set=name, model=model)
            if runs:
                sizes = [r["result"]["parameters"] for r in runs]
                rates = sorted({r["settings"]["lr"] for r in runs})
                epochs = fmean(r["result"]["epochs"] for r in runs)
                lines.append(
                    {
                        "set": name,
                        "model": model,
                        "rate": ", ".join(f"{rate:g}" for rate in rates),
                        "parameters": ", ".join(f"{n:,}" for n in sorted(set(sizes))),
                        "epochs, mean": f"{epochs:.0f}",
                    }
                )
    return Table("Settings", lines)


def _quoted() -> Table:
    lines = [
        {"set": name, **{r: quoted(paper.TU[name][r]) for r in RIVALS}} for name in tu.BASELINE
    ]
    return Table("Other rivals, from the paper", lines)


def draw(axes: Any, records: Sequence[Record]) -> None:
    """Draw the accuracy of the three models on all sets."""
    names = list(tu.BASELINE)
    series = [
        Series.of(
            model,
            names,
            lambda n, m=model: mean_of(
                chosen(records, part="accuracy", set=n, model=m), over="fold"
            ),
        )
        for model in tu.MODELS
    ]
    marks = {(n, m): figure[0] for n, row in paper.TU.items() for m, figure in row.items()}
    draw_bars(axes, series, names, "test accuracy, %", f"{TITLE}; dashed: the paper", marks)
