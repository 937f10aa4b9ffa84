"""The explicit and the scan path, and softmax, on a CPU, in C++, for masks on a grid."""

from .explicit import CpuExplicit
from .scan import CpuScan
from .softmax import CpuSoftmax

__all__ = ["CpuExplicit", "CpuScan", "CpuSoftmax"]
