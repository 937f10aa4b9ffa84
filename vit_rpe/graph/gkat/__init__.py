"""GKAT, the graph Transformer of the paper, in PyG's dialect.

`models`, `gps` and `transforms` need torch-geometric, and are imported when `vit_rpe.graph` is
asked for their names.
"""

from .attention import EXACT_NODES
from .conv import GKATConv
from .dynamic import DynamicWalks
from .makers import DiffusionKernel

__all__ = ["EXACT_NODES", "DiffusionKernel", "DynamicWalks", "GKATConv"]
