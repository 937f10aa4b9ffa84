"""Feature maps phi: queries and keys to features whose dot products are kernel values."""

from .base import FeatureMap
from .elementwise import ELUFeatures, ReLUFeatures, SquareFeatures
from .favor import HyperbolicRandomFeatures, PositiveRandomFeatures
from .orthogonal import orthogonal_gaussian

__all__ = [
    "ELUFeatures",
    "FeatureMap",
    "HyperbolicRandomFeatures",
    "PositiveRandomFeatures",
    "ReLUFeatures",
    "SquareFeatures",
    "orthogonal_gaussian",
]
