"""Checks of the fused kernels on a machine: numbers, bits, compilation, speed; and their page.

With a GPU all of it; without one, what can be run: kernels interpreted, and compiled for GPUs that
are not there.
"""

from .cases import SMALL
from .compilation import DTYPES, TARGETS, Compilation, Job, compilations, compile_jobs
from .gpu import GpuReport, check_gpu, check_without_gpu
from .report_page import page

__all__ = [
    "DTYPES",
    "SMALL",
    "TARGETS",
    "Compilation",
    "GpuReport",
    "Job",
    "check_gpu",
    "check_without_gpu",
    "compilations",
    "compile_jobs",
    "page",
]
