"""Attention layers with timm's signature, masked by relative positions."""

from .base import MaskedAttention
from .linear import MaskedLinearAttention
from .softmax import MaskedSoftmaxAttention

__all__ = ["MaskedAttention", "MaskedLinearAttention", "MaskedSoftmaxAttention"]
