"""Graphs that the experiments learn from: made on the spot, or read from a folder."""

from collections.abc import Container

from .cycles import cycle_set
from .graph_set import GraphBatch, GraphSet, pointers, ragged
from .motifs import DEGREES, MOTIFS, motif_set
from .node_task import CITATION, NodeTask, citation
from .tu import TU, Fold, tu_folds, tu_set

__all__ = [
    "CITATION",
    "DEGREES",
    "MOTIFS",
    "TU",
    "Fold",
    "GraphBatch",
    "GraphSet",
    "NodeTask",
    "citation",
    "cycle_set",
    "download",
    "motif_set",
    "pointers",
    "ragged",
    "tu_folds",
    "tu_set",
]


def download(names: Container[str]) -> None:
    """Fetch what some tables read and the data folder has not."""
    for name in CITATION if "citation" in names else ():
        citation(name, download=True)
    for name in TU if "tu" in names else ():
        tu_set(name, download=True)
        tu_folds(name, download=True)
