"""Report the lines of the table of induced cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import paper
from ..cells import Record
from ..tables import cycles
from .figures import Series, draw_lines
from .summary import Line, Table, chosen, first_of, levels_of, mean_of, quoted, said, verdict

TITLE = "Induced cycles"
ABOUT = (
    f"Test accuracy in percent on {2 * cycles.TEST:,} graphs that nothing else depends on, seeds "
    f"{cycles.SEEDS[0]} to {cycles.SEEDS[-1]}, each with its own trees; {cycles.TRAIN} + "
    f"{cycles.TRAIN} graphs to train on, {cycles.VAL} + {cycles.VAL} to stop by. Sizes are the "
    "paper's (parameters in brackets), nothing was tuned. The paper has numbers only for two "
    "layers, within the time of GKAT's first 100 epochs."
)


RIVALS = ("GKAT", "GAT", "GCN", "ChebNet")


def tables(records: Sequence[Record]) -> list[Table]:
    """Return the accuracy by depth, and by walk length."""
    return [table for table in (_accuracy(records), _lengths(records)) if table.lines]


def verdicts(records: Sequence[Record]) -> list[str]:
    """Say whether GKAT is first among models of two layers, and from which depth rivals pass it."""
    runs = chosen(records, part="accuracy")
    shallow = {m: mean_of(chosen(runs, model=m, depth=2)) for m in RIVALS}
    met = first_of(shallow, len(cycles.SEEDS))
    text = ", ".join(f"{m} {said(value)}" for m, value in shallow.items())
    found = [verdict("first among two-layer GKAT, GAT, GCN, ChebNet", text, met)]
    own = shallow["GKAT"]
    for model in RIVALS[1:]:
        deep = {d: mean_of(chosen(runs, model=model, depth=d)) for d in cycles.DEPTHS}
        ahead = [d for d, v in deep.items() if v is not None and own and v.mean > own.mean]
        if own and None not in deep.values():
            words = f"from {min(ahead)} layers on" if ahead else "at no depth up to 6"
            found.append(f"{model} is ahead of two-layer GKAT {words}")
    return found


def _accuracy(records: Sequence[Record]) -> Table:
    lines: list[Line] = []
    for model in levels_of(chosen(records, part="accuracy"), "model"):
        line = {"model": model}
        for depth in cycles.DEPTHS:
            runs = chosen(records, part="accuracy", model=model, depth=depth)
            size = f" [{runs[0]['result']['parameters']}]" if runs else ""
            line[f"{depth} layers"] = said(mean_of(runs), len(cycles.SEEDS)) + size
        line["paper, 2 layers"] = quoted(paper.CLOCK["induced cycles"].get(model))
        lines.append(line)
    return Table("Accuracy", lines)


def _lengths(records: Sequence[Record]) -> Table:
    runs = chosen(records, part="walk length")
    if not runs:
        return Table("Length of walks", [])
    line: Line = {"model": "GKAT, 2 layers"}
    for length in _all_lengths():
        line[f"{length} steps"] = said(_at(records, length), len(cycles.SEEDS))
    return Table("Length of walks", [line])


def _all_lengths() -> list[int]:
    return sorted([*cycles.LENGTHS, int(cycles.WALKS["num_steps"])])


def _at(records: Sequence[Record], length: int) -> Any:
    if length == cycles.WALKS["num_steps"]:
        return mean_of(chosen(records, part="accuracy", model="GKAT"))
    return mean_of(chosen(records, part="walk length", num_steps=length))


def draw(axes: Any, records: Sequence[Record]) -> None:
    """Draw accuracy by depth; GKAT has two layers everywhere."""
    runs = chosen(records, part="accuracy")
    series = []
    for model in levels_of(runs, "model"):
        of_model = chosen(runs, model=model)
        if model.startswith("GKAT"):
            value = mean_of(of_model)
            series.append(Series.of(f"{model}, 2 layers", cycles.DEPTHS, lambda _, v=value: v))
        else:
            series.append(
                Series.of(model, cycles.DEPTHS, lambda d, r=of_model: mean_of(chosen(r, depth=d)))
            )
    draw_lines(axes, series, "layers", "test accuracy, %", TITLE)
