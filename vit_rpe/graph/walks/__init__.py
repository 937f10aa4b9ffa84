"""Random walks, and the kernels that they estimate."""

from .expected import expected_walk_kernel
from .kernel import RWGNK, WalkKernel
from .series import SeriesKernel, series_root
from .sketches import graph_sketches, graphots
from .walks import Walks, random_walks

__all__ = [
    "RWGNK",
    "SeriesKernel",
    "WalkKernel",
    "Walks",
    "expected_walk_kernel",
    "graph_sketches",
    "graphots",
    "random_walks",
    "series_root",
]
