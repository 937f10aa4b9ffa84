"""Checks of the fused kernels on a machine: numbers, bits, compilation, speed; and their page.

With a GPU all of it; without one, what can be run: kernels interpreted, and compiled for GPUs that
are not there.
"""

from .cases import SMALL
from .compilation import DTYPES, TARGETS, Compilation, compilations
from .gpu import GpuReport, check_gpu, check_without_gpu
from .report_page import page

__all__ = [
    "DTYPES",
    "SMALL",
    "TARGETS",
    "Compilation",
    "GpuReport",
    "check_gpu",
    "check_without_gpu",
    "compilations",
    "page",
]
