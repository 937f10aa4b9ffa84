"""The explicit and the scan path on a CPU, in C++, for masks on a grid."""

from .explicit import CpuExplicit
from .scan import CpuScan

__all__ = ["CpuExplicit", "CpuScan"]
