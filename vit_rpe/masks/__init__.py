"""Matrices known by their product."""

from .base import Mask
from .compose import BlockDiagonal, Bordered, Scaled, Sum
from .elementary import Causal, Dense, Ones, Packing, Padding
from .exponential import Exponential
from .low_rank import LowRank
from .parts import ChosenParts
from .sparse import Sparse
from .toeplitz import Toeplitz

__all__ = [
    "BlockDiagonal",
    "Bordered",
    "Causal",
    "ChosenParts",
    "Dense",
    "Exponential",
    "LowRank",
    "Mask",
    "Ones",
    "Packing",
    "Padding",
    "Scaled",
    "Sparse",
    "Sum",
    "Toeplitz",
]
