"""Masks made from graphs, in PyG's dialect (edge_index, edge_weight). They need torch alone.

`shortest_paths` asks for scipy, which the extra `vit_rpe[graph]` brings.
"""

from .base import GraphMask
from .diffusion import Diffusion
from .kernels import Hypercube, SeriesKernel, WalkKernel, expected_walk_kernel, series_root
from .lattices import both_directions, grid_edges, hypercube_edges
from .shortest_paths import shortest_path_mask, shortest_paths
from .spe import low_rank_logits, sine_factors, sine_spe, stochastic_factors
from .tree import TreeExponential, TreeFunction
from .walks import Walks, random_walks

__all__ = [
    "Diffusion",
    "GraphMask",
    "Hypercube",
    "SeriesKernel",
    "TreeExponential",
    "TreeFunction",
    "WalkKernel",
    "Walks",
    "both_directions",
    "expected_walk_kernel",
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
]
