"""The paths in plain PyTorch, for any device and any mask that allows them."""

from .blocks import BlockExplicit, BlockSoftmax
from .explicit import TorchExplicit
from .product import TorchProduct
from .scan import TorchScan
from .softmax import FusedSoftmax, TorchSoftmax

__all__ = [
    "BlockExplicit",
    "BlockSoftmax",
    "FusedSoftmax",
    "TorchExplicit",
    "TorchProduct",
    "TorchScan",
    "TorchSoftmax",
]
