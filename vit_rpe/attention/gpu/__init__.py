"""The explicit path on a GPU, fused."""

from .flex import FlexExplicit

__all__ = ["FlexExplicit"]
