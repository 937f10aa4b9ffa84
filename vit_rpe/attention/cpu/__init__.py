"""C++ on a CPU: explicit, scan and softmax for masks on a grid, product for sparse ones."""

from .explicit import CpuExplicit
from .gram import CpuGram
from .scan import CpuScan
from .softmax import CpuSoftmax

__all__ = ["CpuExplicit", "CpuGram", "CpuScan", "CpuSoftmax"]
