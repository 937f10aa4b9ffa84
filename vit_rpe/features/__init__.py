"""Feature maps phi: queries and keys to features whose dot products are kernel values."""

from .additive import AdditiveFeatures
from .base import FeatureMap
from .elementwise import ELUFeatures, ReLUFeatures, SquareFeatures
from .favor import HyperbolicRandomFeatures, PositiveRandomFeatures
from .names import ELEMENTWISE, RANDOM, choose, is_random, make_features
from .orthogonal import orthogonal_gaussian
from .topvit import TopViTFeatures

__all__ = [
    "ELEMENTWISE",
    "RANDOM",
    "AdditiveFeatures",
    "ELUFeatures",
    "FeatureMap",
    "HyperbolicRandomFeatures",
    "PositiveRandomFeatures",
    "ReLUFeatures",
    "SquareFeatures",
    "TopViTFeatures",
    "choose",
    "is_random",
    "make_features",
    "orthogonal_gaussian",
]
