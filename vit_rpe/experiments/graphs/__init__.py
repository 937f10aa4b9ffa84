"""The paper's graph experiments: data, rivals, tables. Needs torch-geometric."""

from .data import (
    CITATION,
    MOTIFS,
    TU,
    GraphBatch,
    GraphSet,
    NodeTask,
    citation,
    cycle_set,
    download,
    motif_set,
    tu_set,
)
from .models import num_parameters
from .run import TABLES, Stopped, draw_tables, insert_sections, planned, run_tables, section

__all__ = [
    "CITATION",
    "MOTIFS",
    "TABLES",
    "TU",
    "GraphBatch",
    "GraphSet",
    "NodeTask",
    "Stopped",
    "citation",
    "cycle_set",
    "download",
    "draw_tables",
    "insert_sections",
    "motif_set",
    "num_parameters",
    "planned",
    "run_tables",
    "section",
    "tu_set",
]
