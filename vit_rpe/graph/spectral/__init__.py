"""Diffusion kernels: exponentials of matrices of a graph."""

from .diffusion import Diffusion
from .hypercube import Hypercube

__all__ = ["Diffusion", "Hypercube"]
