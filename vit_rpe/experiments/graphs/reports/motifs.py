"""Report the lines of the motif table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import paper
from ..cells import Record
from ..data import MOTIFS
from ..tables import motifs
from .figures import Series, draw_bars
from .summary import NONE, Line, Table, chosen, first_of, levels_of, mean_of, quoted, said, verdict

TITLE = "Motifs"
ABOUT = (
    f"Test accuracy in percent on {2 * motifs.TEST:,} graphs that nothing else depends on, seeds "
    f"{motifs.SEEDS[0]} to {motifs.SEEDS[-1]}, each with its own graphs; {motifs.TRAIN} + "
    f"{motifs.TRAIN} graphs to train on, {motifs.VAL} + {motifs.VAL} to stop by. Sizes and "
    "schedule are the paper's (Adam at 1e-3, 500 epochs, patience 80), nothing was tuned. "
    "The paper shows final accuracies only in a figure without numbers; in brackets is its "
    "accuracy within the time of GKAT's first 100 epochs."
)


PAPERS = ("GKAT", "GAT", "GCN", "ChebNet")


def tables(records: Sequence[Record]) -> list[Table]:
    """Return accuracy, the differences to GKAT, the effect of random features, walk lengths."""
    found = [_accuracy(records), *_differences(records), _kernels(records), *_lengths(records)]
    return [table for table in found if table.lines]


def verdicts(records: Sequence[Record]) -> list[str]:
    """Count the sets on which GKAT is first, and say what 16 random features cost."""
    runs = chosen(records, part="accuracy")
    first = [
        first_of({m: mean_of(chosen(runs, set=n, model=m)) for m in PAPERS}, len(motifs.SEEDS))
        for n in MOTIFS
    ]
    done, count = len(first) - first.count(None), first.count(True)
    aim = "first among GKAT, GAT, GCN, ChebNet on at least four of five sets"
    met = None if done < len(MOTIFS) else count >= 4
    found = [verdict(aim, f"{count} of {done}", met)]
    few = {n: _pairs(records, n, "GKAT m=16") for n in MOTIFS}
    gaps = [gap for pairs in few.values() for gap in pairs]
    if gaps:
        worst, mean = max(gaps), sum(gaps) / len(gaps)
        text = f"{mean:+.1f} on average, {worst:+.1f} at most, over {len(gaps)} runs"
        met = worst <= 0.5 if all(few.values()) else None
        found.append(verdict("16 random features within 0.5 points of the exact kernel", text, met))
    return found


def _models(records: Sequence[Record]) -> list[str]:
    there = levels_of(chosen(records, part="accuracy"), "model")
    return [model for model in motifs.MODELS if model in there]


def _accuracy(records: Sequence[Record]) -> Table:
    lines: list[Line] = []
    for model in _models(records):
        of_model = chosen(records, part="accuracy", model=model)
        line = {"model": model, "parameters": f"{of_model[0]['result']['parameters']:,}"}
        for name in MOTIFS:
            runs = chosen(of_model, set=name)
            wanted = len(motifs.SEEDS) if model in motifs.MAIN else None
            figure = paper.CLOCK[name].get(model)
            beside = f" [{quoted(figure)}]" if figure is not None else ""
            line[f"{name} [paper]"] = said(mean_of(runs), wanted) + beside
        lines.append(line)
    return Table("Accuracy", lines)


def _differences(records: Sequence[Record]) -> list[Table]:
    """Compare GKAT with each other model on the same graphs: paired by seed."""
    lines: list[Line] = []
    for model in _models(records):
        if model == "GKAT":
            continue
        line = {"GKAT minus": model}
        for name in MOTIFS:
            pairs = _pairs(records, name, model)
            line[name] = (
                f"{sum(pairs) / len(pairs):+.1f} ({min(pairs):+.1f} to {max(pairs):+.1f})"
                if pairs
                else NONE
            )
        lines.append(line)
    return [Table("Differences of the same seed, mean and range", lines)]


def _pairs(records: Sequence[Record], name: str, model: str) -> list[float]:
    runs = chosen(records, part="accuracy", set=name)
    by = {(r["levels"]["model"], r["levels"]["seed"]): 100 * r["result"]["test"] for r in runs}
    return [v - by[model, s] for (m, s), v in by.items() if m == "GKAT" and (model, s) in by]


def _kernels(records: Sequence[Record]) -> Table:
    """Compare 16 random features with the exact kernel."""
    lines: list[Line] = []
    for run in chosen(records, part="accuracy", model="GKAT m=16"):
        name, seed = run["levels"]["set"], run["levels"]["seed"]
        exact = chosen(records, part="accuracy", model="GKAT", set=name, seed=seed)
        if exact:
            first, second = (100 * r["result"]["test"] for r in (exact[0], run))
            figure = paper.SPEED[name][3] if name in paper.SPEED else None
            lines.append(
                {
                    "set": name,
                    "exact": f"{first:.1f}",
                    "16 features": f"{second:.1f}",
                    "difference": f"{first - second:+.1f}",
                    "paper": NONE if figure is None else f"{figure:+.2f}",
                }
            )
    return Table("Exact kernel and 16 random features, of the same seed", lines)


def _lengths(records: Sequence[Record]) -> list[Table]:
    runs = chosen(records, part="walk length")
    lines: list[Line] = []
    for name in levels_of(runs, "set"):
        line = {"set": name}
        for length in sorted([*motifs.LENGTHS, motifs.WALKS["num_steps"]]):
            few = chosen(runs, set=name, num_steps=length)
            if length == motifs.WALKS["num_steps"]:
                few = chosen(records, part="accuracy", set=name, model="GKAT", seed=0)
            line[f"{length:g} steps"] = said(mean_of(few))
        lines.append(line)
    return [Table("Length of walks, seed 0", lines)]


def draw(axes: Any, records: Sequence[Record]) -> None:
    """Draw the accuracy of all models on all sets."""
    names = list(MOTIFS)
    series = [
        Series.of(
            model,
            names,
            lambda n, m=model: mean_of(chosen(records, part="accuracy", set=n, model=m)),
        )
        for model in _models(records)
    ]
    marks = {(n, m): v for n, row in paper.CLOCK.items() for m, v in row.items() if n in names}
    title = "Motifs; dashed: the paper, within the time of 100 epochs of GKAT"
    draw_bars(axes, series, names, "test accuracy, %", title, marks)
