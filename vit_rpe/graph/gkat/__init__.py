"""GKAT, the graph Transformer of the paper, in PyG's dialect.

`models` and `transforms` need torch-geometric, and are imported when `vit_rpe.graph` is asked for
their names.
"""

from .conv import GKATConv
from .dynamic import DynamicWalks

__all__ = ["DynamicWalks", "GKATConv"]
