"""Report the lines of the table of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import paper
from ..cells import Record
from ..tables import speed
from .summary import NONE, Line, Table

TITLE = "Speed and memory of one layer"
OURS = ("GKAT m=16", "GKAT m=256", "GKAT additive", speed.EXACT)
ABOUT = (
    "One head of 16 channels, forward and backward with gradients to x; medians of runs in turns, "
    f"one thread of a CPU. Motif graphs and trees in batches of {speed.BATCH}; GKAT-0 is then the "
    "exact kernel, graph by graph. The paper's GAT is dense (memory and times grow with L x L); "
    "beside PyG's sparse GATConv a layer of GKAT is slower, since it looks further than its "
    "neighbors."
)


def tables(records: Sequence[Record]) -> list[Table]:
    """Return the paper's ratios, ours beside the sparse GAT, and all times."""
    if not records:
        return []
    return [_paper(records), _times(records)]


def _paper(records: Sequence[Record]) -> Table:
    """GKAT with 16 random features (the paper: 16, 8 on trees, 256 on citation graphs)."""
    lines: list[Line] = []
    for record in records:
        case, layers = record["levels"]["case"], record["result"]["layers"]
        memory, train, infer, _ = paper.SPEED[case]
        own, dense, sparse = (layers.get(k) for k in (OURS[0], speed.DENSE_GAT, speed.SPARSE_GAT))
        lines.append(
            {
                "graphs": case,
                "memory, GKAT / GKAT-0 [paper]": _ratio(own, layers.get(speed.EXACT), "peak_mb")
                + f" [{memory:.2f}]",
                "training, dense GAT / GKAT": _ratio(dense, own, "train_ms") + f" [{train:.2f}]",
                "inference, dense GAT / GKAT": _ratio(dense, own, "infer_ms") + f" [{infer:.2f}]",
                "training, sparse GAT / GKAT": _ratio(sparse, own, "train_ms"),
                "training, sparse GAT / additive": _ratio(
                    sparse, layers.get("GKAT additive"), "train_ms"
                ),
                "training, sparse GAT / exact": _ratio(sparse, layers.get(speed.EXACT), "train_ms"),
            }
        )
    return Table("Ratios, with 16 random features", lines)


def _ratio(over: dict[str, Any] | None, under: dict[str, Any] | None, what: str) -> str:
    if not over or not under or over[what] is None or not under[what]:
        return NONE
    return f"{over[what] / under[what]:.2f}"


def _times(records: Sequence[Record]) -> Table:
    lines: list[Line] = []
    for record in records:
        for name, row in record["result"]["layers"].items():
            memory = row["peak_mb"]
            lines.append(
                {
                    "graphs": record["levels"]["case"],
                    "layer": name,
                    "training, ms": f"{row['train_ms']:.2f}",
                    "inference, ms": f"{row['infer_ms']:.2f}",
                    "peak, MB": NONE if memory is None else f"{memory:.1f}",
                }
            )
    return Table("Medians", lines)
