"""Report the lines of the citation table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import paper
from ..cells import Record
from ..data import CITATION
from ..tables import citation
from .figures import Series, draw_lines
from .summary import NONE, Table, chosen, levels_of, mean_of, quoted, said, verdict

TITLE = "Citation graphs"
ABOUT = (
    "Test accuracy in percent at the last epoch at which neither validation accuracy nor loss had "
    "ever been better, as in GAT's own program; public splits, seeds "
    f"{citation.SEEDS[0]} to {citation.SEEDS[-1]}; two layers, 8 heads of 8 channels, then one "
    "onto the classes; GKAT in its additive form. Settings have the best mean validation accuracy "
    f"of seeds {citation.CHOICE_SEEDS[0]} and {citation.CHOICE_SEEDS[-1]}, which are not reported; "
    "the test nodes took no part."
)
BARS = {"cora": 82.0, "citeseer": 72.0, "pubmed": 78.0}


def tables(records: Sequence[Record]) -> list[Table]:
    """Return accuracy, choices, and the accuracy by walk length."""
    return [_accuracy(records), _choices(records), *_lengths(records)]


def verdicts(records: Sequence[Record]) -> list[str]:
    """Hold the means of all seeds against the bars."""
    found = []
    for graph, bar in BARS.items():
        value = mean_of(chosen(records, part="accuracy", graph=graph, model="GKAT"))
        done = value is not None and value.count == len(citation.SEEDS)
        met = value.mean >= bar if done and value is not None else None
        found.append(verdict(f"{graph}, GKAT, at least {bar:.1f}", said(value), met))
    return found


def _accuracy(records: Sequence[Record]) -> Table:
    lines = []
    for graph in CITATION:
        for model in ("GKAT", "dynamic GKAT", citation.DIFFUSION, "GAT"):
            runs = chosen(records, part="accuracy", graph=graph, model=model)
            figure = paper.CITATION[graph].get(model)
            if not runs and figure is None:
                continue
            bar = f"{BARS[graph]:.1f}" if model == "GKAT" else NONE
            lines.append(
                {
                    "graph": graph,
                    "model": model,
                    "seeds": str(len(runs)),
                    "here": said(mean_of(runs)),
                    "validation": said(mean_of(runs, "val")),
                    "paper": quoted(figure),
                    "aimed at": bar,
                }
            )
    return Table("Accuracy", lines)


def _choices(records: Sequence[Record]) -> Table:
    """List what was chosen among, and the validation accuracy of each."""
    lines = []
    for graph in CITATION:
        for model in citation.CHOICES[graph]:
            tried = chosen(records, part="choice", graph=graph, model=model)
            for number in levels_of(tried, "setting"):
                runs = chosen(tried, setting=number)
                value = said(mean_of(runs, "val"), len(citation.CHOICE_SEEDS))
                settings = _brief(runs[0]["settings"])
                lines.append(
                    {"graph": graph, "model": model, "settings": settings, "validation": value}
                )
    return Table("Choices, by validation accuracy", lines)


def _brief(settings: dict[str, Any]) -> str:
    shown = ("lr", "weight_decay", "dropout", "out_heads")
    walks = ("num_walks", "num_steps", "lam", "alpha", "learned_lam")
    return ", ".join(f"{k} {settings[k]:g}" for k in (*shown, *walks) if k in settings)


def _lengths(records: Sequence[Record]) -> list[Table]:
    runs = chosen(records, part="walk length")
    if not runs:
        return []
    lines = []
    for graph in levels_of(runs, "graph"):
        line = {"graph": graph}
        for length in citation.LENGTHS:
            few = chosen(runs, graph=graph, num_steps=length)
            line[f"{length} steps"] = said(mean_of(few), len(citation.LENGTH_SEEDS))
        lines.append(line)
    return [Table("Length of walks", lines)]


def draw(axes: Any, records: Sequence[Record]) -> None:
    """Draw accuracy by walk length, with the deviation over seeds."""
    runs = chosen(records, part="walk length")
    series = [
        Series.of(
            graph, citation.LENGTHS, lambda n, g=graph: mean_of(chosen(runs, graph=g, num_steps=n))
        )
        for graph in CITATION
    ]
    draw_lines(axes, series, "steps of the walks", "test accuracy, %", "Citation graphs")
