"""C++ on a CPU: explicit, scan and softmax on grids, sparse products, softmax in parts."""

from .block_softmax import CpuBlockSoftmax
from .explicit import CpuExplicit
from .gram import CpuGram
from .scan import CpuScan
from .softmax import CpuSoftmax

__all__ = ["CpuBlockSoftmax", "CpuExplicit", "CpuGram", "CpuScan", "CpuSoftmax"]
