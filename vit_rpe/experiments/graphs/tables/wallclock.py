"""Accuracy within the time that GKAT takes for its first 100 epochs (paper, Sec. 5.3).

The clock counts seconds of the processor, of one thread: other processes do not stop it. All
models of a cell run one after the other, GKAT first; a rival stops after the epoch in which the
time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..cells import Cell, Record
from ..data import MOTIFS
from ..fitting import Graphs, Schedule, batches, fit_graphs, score
from ..models import GraphNet
from . import cycles, motifs

NAME = "wallclock"
SEEDS = range(2)
EPOCHS = 100
CYCLES = "induced cycles"
MODELS = ("GKAT", "GKAT additive", "GAT", "GCN", "ChebNet", "GIN")


def cells(done: Sequence[Record], quick: bool = False) -> list[Cell]:
    """Return a cell for each set and seed; none depends on another."""
    sets = ("grid", CYCLES) if quick else (*MOTIFS, CYCLES)
    return [_cell(name, seed, quick) for seed in SEEDS[: 1 if quick else None] for name in sets]


def _cell(name: str, seed: int, quick: bool) -> Cell:
    table = cycles if name == CYCLES else motifs
    sizes = {"train": table.TRAIN, "val": table.VAL, "test": table.TEST}
    settings = {
        **table.WALKS,
        **(dict.fromkeys(sizes, 8) if quick else sizes),
        "lr": table.SCHEDULE.lr,
        "batch_size": table.SCHEDULE.batch_size,
        "epochs": 2 if quick else EPOCHS,
    }
    levels = {"part": "accuracy", "set": name, "seed": seed}
    return Cell(NAME, levels, settings, lambda: run(levels, settings), 28 + seed)


def run(levels: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Train GKAT for some epochs, and every other model for as long."""
    name, seed = levels["set"], levels["seed"]
    result: dict[str, Any] = {}
    budget: float | None = None
    for model, make in _models(name).items():
        graphs = _parts(name, seed, settings, model)
        torch.manual_seed(seed)
        result[model] = _raced(make(), graphs, settings, budget)
        budget = budget or result[model]["cpu_seconds"]
    return result


def _raced(
    model: GraphNet, graphs: list[Graphs], settings: dict[str, Any], budget: float | None
) -> dict[str, float]:
    """Train until the time is over, if there is a budget, else for so many epochs."""
    start = time.process_time()

    def over(_epoch: int, _accuracy: float) -> bool:
        return budget is not None and time.process_time() - start >= budget

    endless = 1_000_000
    epochs = settings["epochs"] if budget is None else endless
    schedule = Schedule(settings["lr"], epochs, endless, batch_size=settings["batch_size"])
    fitted = fit_graphs(model, graphs[0], graphs[1], schedule, after=over)
    spent = time.process_time() - start
    accuracy, _ = score(model, batches(graphs[2]))
    return {"test": accuracy, "val": fitted.val, "epochs": fitted.epochs, "cpu_seconds": spent}


def _models(name: str) -> dict[str, Callable[[], GraphNet]]:
    if name == CYCLES:
        rivals = {m: make for m, make in cycles.MODELS.items() if m in MODELS}
        return {model: lambda m=make: m(2) for model, make in rivals.items()}
    return {model: motifs.MODELS[model] for model in MODELS}


def _parts(name: str, seed: int, settings: dict[str, Any], model: str) -> list[Graphs]:
    """Return the graphs, with walks where the model walks."""
    if not model.startswith("GKAT"):
        settings = {k: v for k, v in settings.items() if k not in motifs.WALKS}
    if name == CYCLES:
        return cycles.parts(seed, settings, model)
    return motifs.parts(name, seed, settings, model)
