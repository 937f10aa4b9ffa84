"""Masks made from graphs, in PyG's dialect (edge_index, edge_weight), and GKAT on top of them.

Masks and `GKATConv` need torch alone. `shortest_paths` asks for scipy, models and transforms for
torch-geometric; the extra `vit_rpe[graph]` brings them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .additive import AdditiveFeatures
from .base import GraphMask
from .diffusion import Diffusion
from .dynamic import DynamicWalks
from .kernels import Hypercube, SeriesKernel, WalkKernel, expected_walk_kernel, series_root
from .lattices import both_directions, grid_edges, hypercube_edges
from .layer import GKATConv
from .makers import RandomWalkMask
from .shortest_paths import shortest_path_mask, shortest_paths
from .sketches import graphots
from .spe import low_rank_logits, sine_factors, sine_spe, stochastic_factors
from .tree import TreeExponential, TreeFunction
from .visits import Visits
from .walks import Walks, random_walks

if TYPE_CHECKING:
    from .models import GKAT, GKATGraphClassifier, GKATNodeClassifier
    from .transforms import RandomWalkKernel, walk_mask

__all__ = [
    "GKAT",
    "AdditiveFeatures",
    "Diffusion",
    "DynamicWalks",
    "GKATConv",
    "GKATGraphClassifier",
    "GKATNodeClassifier",
    "GraphMask",
    "Hypercube",
    "RandomWalkKernel",
    "RandomWalkMask",
    "SeriesKernel",
    "TreeExponential",
    "TreeFunction",
    "Visits",
    "WalkKernel",
    "Walks",
    "both_directions",
    "expected_walk_kernel",
    "graphots",
    "grid_edges",
    "hypercube_edges",
    "low_rank_logits",
    "random_walks",
    "series_root",
    "shortest_path_mask",
    "shortest_paths",
    "sine_factors",
    "sine_spe",
    "stochastic_factors",
    "walk_mask",
]

_NEEDS_PYG = {
    "GKAT": "models",
    "GKATGraphClassifier": "models",
    "GKATNodeClassifier": "models",
    "RandomWalkKernel": "transforms",
    "walk_mask": "transforms",
}


def __getattr__(name: str) -> Any:
    """What needs torch-geometric is imported when it is asked for."""
    if name not in _NEEDS_PYG:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f".{_NEEDS_PYG[name]}", __name__)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} needs {error.name}: pip install vit_rpe[graph]", name=error.name
        ) from error
    return getattr(module, name)
