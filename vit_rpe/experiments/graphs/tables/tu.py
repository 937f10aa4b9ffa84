"""GKAT, its baseline and GIN on TU sets, in the folds of a fair comparison (paper, Sec. 5.2).

In each of the ten outer folds a row of settings is chosen by the inner holdout; then three runs
train on nine tenths of the rest of the fold, drawn at random, stop by the last tenth, and are
tested. The learning rate is chosen once, on the inner holdout of the first fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.graph import RWGNK

from ..cells import Cell, Record
from ..data import GraphSet, tu_folds, tu_set
from ..fitting import Schedule, batches, fit_graphs, score
from ..masks import Matrices, Walked
from ..models import (
    Fingerprint,
    Multiset,
    PooledNet,
    gin_layers,
    gkat_layers,
    num_parameters,
)

NAME = "tu"
EPOCHS, PATIENCE = 1000, 100
RUNS = range(3)
RATES = (1e-2, 1e-3)
CHOICE_SEED = 100
NUM_WALKS = 50
BASELINE = {"ENZYMES": "DM", "PROTEINS": "MF", "NCI1": "MF", "IMDB-BINARY": "DM"}
MODELS = ("GKAT", "baseline", "GIN")


@dataclass(frozen=True)
class Row:
    """Settings of a model; those of GKAT are the paper's (its table of hyperparameters)."""

    batch_size: int = 32
    heads: int = 0
    width: int = 0  # of a head of GKAT, or of a layer of GIN
    fc: int = 32  # of the linear maps before and after
    num_steps: int = 0
    dropout: float = 0.0
    weight_decay: float = 0.0
    fc_before: bool = False
    norm: bool = False


ROWS: dict[str, tuple[Row, ...]] = {
    "ENZYMES": (
        Row(32, 4, 16, 32, 3, 0.1, 1e-3, True, True),
        Row(32, 8, 32, 64, 3, 0.1, 1e-3, True, True),
    ),
    "PROTEINS": (
        Row(32, 4, 8, 32, 3, 0.0, 1e-3, True, True),
        Row(128, 8, 32, 128, 3, 0.0, 1e-3, True, True),
    ),
    "NCI1": (Row(32, 8, 32, 64, 4, 0.1, 1e-3, True, True),),
    "IMDB-BINARY": (
        Row(32, 8, 4, 64, 1, 0.0, 5e-3, False, False),
        Row(32, 12, 8, 128, 1, 0.0, 5e-3, False, True),
    ),
}


def rows_of(name: str, model: str) -> tuple[Row, ...]:
    """Return the settings to choose among; baseline and GIN keep what GKAT has around its layers.

    GIN: three layers of 32 or 64 channels, with batch norm inside.
    """
    of_gkat = ROWS[name]
    if model == "GKAT":
        return of_gkat
    around = replace(Row(), weight_decay=of_gkat[0].weight_decay, dropout=of_gkat[0].dropout)
    if model == "baseline":
        return tuple(replace(around, fc=width, norm=of_gkat[-1].norm) for width in (32, 128))
    return tuple(replace(around, width=width, fc=width) for width in (32, 64))


def cells(done: Sequence[Record], quick: bool = False) -> list[Cell]:
    """Return the cells that can be run now: choices, and what follows from finished ones."""
    found: list[Cell] = []
    finished = {_key(each["levels"]): each["result"] for each in done}
    for order, name in enumerate(("ENZYMES",) if quick else BASELINE):
        for model in MODELS:
            rates = list(_rates(name, model, order, quick))
            found += rates
            rate = _best(rates, finished, "lr")
            if rate is None:
                continue
            for fold in range(2 if quick else 10):
                choices = list(_choices(name, model, fold, rate, order, quick))
                found += choices
                row = _best(choices, finished, "row")
                if row is not None:
                    found += _finals(name, model, fold, int(row), rate, order, quick)
    return found


def _key(levels: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in levels.items())


def _rates(name: str, model: str, order: int, quick: bool) -> Iterable[Cell]:
    for rate in RATES:
        levels = {"part": "rate", "set": name, "model": model, "lr": rate}
        row = rows_of(name, model)[0]
        yield _cell(levels, row, rate, 40 + 4 * order, quick, fold=0, seed=CHOICE_SEED)


def _choices(
    name: str, model: str, fold: int, rate: float, order: int, quick: bool
) -> Iterable[Cell]:
    rows = rows_of(name, model)
    for number, row in enumerate(rows if len(rows) > 1 else ()):
        levels = {"part": "choice", "set": name, "model": model, "fold": fold, "row": number}
        yield _cell(levels, row, rate, 41 + 4 * order, quick, fold=fold, seed=CHOICE_SEED + 1)


def _finals(
    name: str, model: str, fold: int, row: int, rate: float, order: int, quick: bool
) -> Iterable[Cell]:
    for number in RUNS[: 1 if quick else None]:
        levels = {"part": "accuracy", "set": name, "model": model, "fold": fold, "run": number}
        rank = (41 if number == 0 else 60) + 4 * order + number
        yield _cell(levels, rows_of(name, model)[row], rate, rank, quick, fold=fold, seed=number)


def _best(choices: Sequence[Cell], finished: dict[str, Any], level: str) -> float | None:
    """Return the choice of the best validation accuracy, then of the least loss, once all ran."""
    if not choices:
        return 0
    results = [finished.get(_key(cell.levels)) for cell in choices]
    if any(each is None for each in results):
        return None
    scores = [(each["val"], -each["val_loss"]) for each in results if each is not None]
    return float(choices[scores.index(max(scores))].levels[level])


def _cell(
    levels: dict[str, Any], row: Row, rate: float, rank: int, quick: bool, fold: int, seed: int
) -> Cell:
    epochs = 2 if quick else EPOCHS
    settings = {**asdict(row), "lr": rate, "epochs": epochs, "patience": PATIENCE, "seed": seed}
    return Cell(NAME, levels, settings, lambda: run(levels, settings, row, fold), rank)


def run(levels: dict[str, Any], settings: dict[str, Any], row: Row, fold: int) -> dict[str, Any]:
    """Train one model; test graphs only in final runs."""
    torch.manual_seed(settings["seed"])
    graphs, folds = _set(levels["set"])
    train, val, test = _parts(folds[fold], levels["part"], 10 * fold + settings["seed"])
    model = network(levels["set"], levels["model"], row, graphs)
    schedule = Schedule(
        settings["lr"], settings["epochs"], settings["patience"], row.weight_decay,
        row.batch_size, by_loss=False,
    )  # fmt: skip
    walked = _walked(levels["set"], row.num_steps) if row.num_steps else graphs
    fitted = fit_graphs(model, walked.select(train), walked.select(val), schedule)
    result = fitted.as_dict() | {"parameters": num_parameters(model)}
    if levels["part"] == "accuracy":
        result["test"], _ = score(model, batches(walked.select(test)))
    return result


@cache
def _set(name: str) -> tuple[GraphSet, list[Any]]:
    graphs, folds = tu_set(name), tu_folds(name)
    told = sum(len(part) for part in vars(folds[0]).values())
    if told != len(graphs):
        raise ValueError(f"{name} has {len(graphs)} graphs, its file of splits is for {told}")
    return graphs, folds


@cache
def _walked(name: str, num_steps: int) -> Matrices:
    return Matrices(Walked(_set(name)[0], RWGNK(NUM_WALKS, num_steps)))


def _parts(fold: Any, part: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the graphs to train on, to stop by, and to test on."""
    if part != "accuracy":
        return fold.train, fold.val, fold.test
    rest = torch.cat([fold.train, fold.val])
    mixed = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))]
    held_out = len(rest) // 10
    return mixed[held_out:], mixed[:held_out], fold.test


def network(name: str, model: str, row: Row, graphs: GraphSet) -> PooledNet:
    """Make GKAT, GIN or the baseline alone for a set."""
    head = Multiset if BASELINE[name] == "DM" else Fingerprint

    def layers(channels: int) -> tuple[Sequence[nn.Module], int]:
        if model == "baseline":
            return (), channels
        if model == "GIN":
            return gin_layers(channels, (row.width,) * 3, norm=True), row.width
        made = gkat_layers(channels, row.width, (row.heads, 1), **ATTENTION)
        return made, row.width

    def baseline(channels: int) -> nn.Module:
        return head(channels, row.fc, graphs.num_classes, row.dropout)

    act: dict[str, Callable[[Tensor], Tensor]] = {"act": torch.relu} if model == "GIN" else {}
    before = row.fc if row.fc_before else None
    return PooledNet(graphs.num_features, layers, baseline, row.norm, before, **act)


ATTENTION: dict[str, Any] = {"feature_map": "softmax", "exact_kernel": True}
