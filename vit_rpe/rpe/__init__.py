"""Modules that own parameters and make masks when called: for images, video, sequences."""

from .base import GridRPE, grid_distance
from .border import Border, ReadOnlyBorder
from .causal import CausalRPE
from .distance import DistanceRPE
from .exponential import ExponentialRPE
from .factorized import FactorizedRPE
from .layout import Grid, TokenLayout
from .offset import OffsetRPE
from .resize import resample, resample_offsets
from .stochastic import low_rank_logits, sine_factors, sine_spe, stochastic_factors

__all__ = [
    "Border",
    "CausalRPE",
    "DistanceRPE",
    "ExponentialRPE",
    "FactorizedRPE",
    "Grid",
    "GridRPE",
    "OffsetRPE",
    "ReadOnlyBorder",
    "TokenLayout",
    "grid_distance",
    "low_rank_logits",
    "resample",
    "resample_offsets",
    "sine_factors",
    "sine_spe",
    "stochastic_factors",
]
