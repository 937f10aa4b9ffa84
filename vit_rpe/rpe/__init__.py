"""Modules that own parameters and make masks when called: for images, video, sequences."""

from .base import GridRPE
from .distance import DistanceRPE
from .exponential import ExponentialRPE
from .offset import OffsetRPE

__all__ = ["DistanceRPE", "ExponentialRPE", "GridRPE", "OffsetRPE"]
