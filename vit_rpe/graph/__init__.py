"""Masks made from graphs, in PyG's dialect (edge_index, edge_weight), and GKAT on top of them.

Masks and `GKATConv` import only torch. `shortest_paths` needs scipy, models and transforms need
torch-geometric; the extra `vit_rpe[graph]` brings them.
"""

from typing import TYPE_CHECKING, Any

from vit_rpe.extras import import_extra

from .base import GraphMask
from .distances import shortest_path_mask, shortest_paths
from .edges import Graph, as_graph
from .gkat import DiffusionKernel, DynamicWalks, GKATConv
from .lattices import both_directions, grid_edges, hypercube_edges
from .spectral import Diffusion, Hypercube
from .trees import TreeExponential, TreeFunction
from .walks import (
    RWGNK,
    SeriesKernel,
    WalkKernel,
    Walks,
    expected_walk_kernel,
    graph_sketches,
    graphots,
    random_walks,
    series_root,
)

if TYPE_CHECKING:
    from .gkat.gps import GKATBlock
    from .gkat.models import GKAT, GKATGraphClassifier, GKATNodeClassifier
    from .gkat.transforms import AddRandomWalks, walk_mask

__all__ = [
    "GKAT",
    "RWGNK",
    "AddRandomWalks",
    "Diffusion",
    "DiffusionKernel",
    "DynamicWalks",
    "GKATBlock",
    "GKATConv",
    "GKATGraphClassifier",
    "GKATNodeClassifier",
    "Graph",
    "GraphMask",
    "Hypercube",
    "SeriesKernel",
    "TreeExponential",
    "TreeFunction",
    "WalkKernel",
    "Walks",
    "as_graph",
    "both_directions",
    "expected_walk_kernel",
    "graph_sketches",
    "graphots",
    "grid_edges",
    "hypercube_edges",
    "random_walks",
    "series_root",
    "shortest_path_mask",
    "shortest_paths",
    "walk_mask",
]

_NEEDS_PYG = {
    "GKAT": "models",
    "GKATBlock": "gps",
    "GKATGraphClassifier": "models",
    "GKATNodeClassifier": "models",
    "AddRandomWalks": "transforms",
    "walk_mask": "transforms",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch-geometric when it is asked for."""
    if name not in _NEEDS_PYG:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_extra(f"{__name__}.gkat.{_NEEDS_PYG[name]}", "graph", name), name)
