"""The paths in plain PyTorch, for any device and any mask that allows them."""

from .explicit import TorchExplicit
from .product import TorchProduct
from .scan import TorchScan
from .softmax import FusedSoftmax, TorchSoftmax

__all__ = ["FusedSoftmax", "TorchExplicit", "TorchProduct", "TorchScan", "TorchSoftmax"]
