"""Modules that own parameters and make masks when called: for images, video, sequences."""

from .base import GridRPE
from .border import Border, ReadOnlyBorder
from .causal import CausalRPE
from .distance import DistanceRPE
from .exponential import ExponentialRPE
from .factorized import FactorizedRPE
from .layout import Grid, TokenLayout
from .offset import OffsetRPE
from .stochastic import low_rank_logits, sine_factors, sine_spe, stochastic_factors

__all__ = [
    "Border",
    "DistanceRPE",
    "ExponentialRPE",
    "FactorizedRPE",
    "Grid",
    "GridRPE",
    "OffsetRPE",
    "CausalRPE",
    "ReadOnlyBorder",
    "TokenLayout",
    "low_rank_logits",
    "sine_factors",
    "sine_spe",
    "stochastic_factors",
]
