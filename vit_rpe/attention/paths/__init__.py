"""The paths in plain PyTorch, for any device and any mask that allows them."""

from .explicit import TorchExplicit
from .product import TorchProduct
from .scan import TorchScan

__all__ = ["TorchExplicit", "TorchProduct", "TorchScan"]
