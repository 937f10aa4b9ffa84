"""Does a new edge close a longest cycle of a tree? Shallow and dense, or deep (paper, Sec. 5.1.2).

Two layers of GKAT with 242 parameters beside rivals of two to six layers of about that size: the
paper's, and GIN. The schedule is the paper's; nothing is tuned. Each seed draws its own trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from vit_rpe.graph import RWGNK

from ..cells import Cell, Record
from ..data import cycle_set
from ..fitting import Graphs, Schedule, batches, fit_graphs, score
from ..masks import Spanned, Walked
from ..models import GraphNet, chebnet, gat, gcn, gin, gkat, gkat_on_trees, num_parameters

NAME = "cycles"
SEEDS = range(3)
TRAIN, VAL, TEST = 768, 256, 512  # pairs
WALKS = {"num_walks": 50, "num_steps": 5, "lam": 1.0}
LENGTHS = (1, 2, 3, 4, 6, 7, 8, 10)  # 5 is the main row
SCHEDULE = Schedule(lr=5e-3, epochs=500, patience=80)

GAT_HEADS = {2: (8, 1), 3: (4, 2, 1), 4: (4, 2, 1, 1), 5: (2, 2, 2, 1, 1), 6: (3, 2, 1, 1, 1, 1)}
GCN_WIDTHS = {
    2: (14, 14),
    3: (10, 10, 10),
    4: (8, 8, 8, 8),
    5: (10, 8, 6, 6, 6),
    6: (10, 6, 6, 6, 6, 6),
}
CHEB_WIDTHS = {
    2: (10, 8),
    3: (8, 6, 6),
    4: (8, 5, 4, 4),
    5: (6, 5, 4, 4, 4),
    6: (6, 4, 4, 4, 4, 3),
}
CHEB_FILTERS = {
    2: (4, 2),
    3: (4, 2, 2),
    4: (8, 2, 2, 2),
    5: (8, 2, 2, 2, 2),
    6: (8, 2, 2, 2, 2, 2),
}
GIN_WIDTHS = {2: (8,) * 2, 3: (6,) * 3, 4: (5,) * 4, 5: (4,) * 5, 6: (4,) * 6}
DEPTHS = (2, 3, 4, 5, 6)

MODELS: dict[str, Callable[[int], GraphNet]] = {
    "GKAT": lambda depth: gkat(1, 4, (8, 1), bias=False, feature_map="additive"),
    "GKAT on a tree": lambda depth: gkat_on_trees(1, 4, (8, 1), bias=False, feature_map="additive"),
    "GAT": lambda depth: gat(1, 4, GAT_HEADS[depth], bias=False),
    "GCN": lambda depth: gcn(1, GCN_WIDTHS[depth]),
    "ChebNet": lambda depth: chebnet(1, CHEB_WIDTHS[depth], CHEB_FILTERS[depth]),
    "GIN": lambda depth: gin(1, GIN_WIDTHS[depth]),
}


def cells(done: Sequence[Record], quick: bool = False) -> list[Cell]:
    """Return all cells; none depends on another."""
    found: list[Cell] = []
    for seed in SEEDS[: 1 if quick else None]:
        for model in MODELS:
            for depth in (2,) if model.startswith("GKAT") else DEPTHS:
                shallow = depth == 2
                found.append(_accuracy(model, depth, seed, 20 + seed + 3 * (not shallow), quick))
    return [*found, *_lengths(quick)]


def _accuracy(model: str, depth: int, seed: int, rank: int, quick: bool) -> Cell:
    levels = {"part": "accuracy", "model": model, "depth": depth, "seed": seed}
    return _cell(levels, WALKS if model == "GKAT" else {}, rank, quick)


def _lengths(quick: bool) -> Iterable[Cell]:
    for seed in SEEDS[: 1 if quick else None]:
        for length in LENGTHS[: 1 if quick else None]:
            levels = {"part": "walk length", "num_steps": length, "seed": seed}
            yield _cell(levels, WALKS | {"num_steps": length}, 32 + seed, quick)


def _cell(levels: dict[str, Any], walks: dict[str, Any], rank: int, quick: bool) -> Cell:
    sizes = {"train": TRAIN, "val": VAL, "test": TEST}
    sizes = dict.fromkeys(sizes, 8) if quick else sizes
    schedule = vars(SCHEDULE) | ({"epochs": 3} if quick else {})
    settings = {**walks, **sizes, **schedule}
    return Cell(NAME, levels, settings, lambda: run(levels, settings), rank)


def run(levels: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Train one model."""
    name = levels.get("model", "GKAT")
    train, val, test = parts(levels["seed"], settings, name)
    torch.manual_seed(levels["seed"])
    model = MODELS[name](levels.get("depth", 2))
    schedule = Schedule(**{key: settings[key] for key in vars(SCHEDULE)})
    fitted = fit_graphs(model, train, val, schedule)
    accuracy, _ = score(model, batches(test))
    return fitted.as_dict() | {"test": accuracy, "parameters": num_parameters(model)}


def parts(seed: int, settings: dict[str, Any], model: str = "GKAT") -> list[Graphs]:
    """Return graphs to train on, to stop by, and to test on, with what the model's mask needs."""
    found: list[Graphs] = []
    for number, part in enumerate(("train", "val", "test")):
        graphs = cycle_set(settings[part], seed=3 * seed + number)
        found.append(graphs)
        if model == "GKAT on a tree":
            found[-1] = Spanned(graphs, seed)
        elif "num_walks" in settings:
            walks = RWGNK(**{key: settings[key] for key in WALKS}, seed=seed)
            found[-1] = Walked(graphs, walks)
    return found
