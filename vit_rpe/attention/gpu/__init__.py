"""The explicit path on a GPU, fused in Triton: linear attention, and by softmax."""

from .linear import FusedLinear
from .softmax import FusedTableSoftmax

__all__ = ["FusedLinear", "FusedTableSoftmax"]
