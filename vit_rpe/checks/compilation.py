"""Compile the fused kernels for kinds of GPUs, in another process than that which interprets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from .child import ChildError, json_lines

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (32, 64, 128)
KINDS = ("linear", "softmax")
_MODULE = "vit_rpe.attention.gpu.ahead_of_time"


@dataclass(frozen=True)
class Job:
    """The kernels of a training step, of a kind in KINDS, for heads of `width` channels."""

    target: str
    dtype: str
    kind: str
    width: int


@dataclass(frozen=True)
class Compilation:
    """The outcome of compiling a kernel for heads of `width` features and channels.

    Attributes:
        registers, shared, stack: of a thread, of a program in bytes, and bytes of a thread that did
            not fit into registers.
        matrix_instructions, atomics: how often they stand in the assembly.
    """

    kernel: str
    target: str
    dtype: str
    width: int
    tile: str
    registers: int
    shared: int
    shared_limit: int
    stack: int
    matrix_instructions: int
    atomics: int

    def problem(self) -> str | None:
        """Say what is wrong with it; None if nothing is."""
        if self.stack:
            return f"{self.stack} bytes do not fit into registers"
        if self.shared > self.shared_limit:
            return f"{self.shared} bytes of shared memory, and {self.shared_limit} are there"
        if self.atomics:
            return f"{self.atomics} atomic instructions: results would not repeat"
        if self.kernel != "table" and not self.matrix_instructions:
            return "no matrix instructions"
        return None


class CompilationError(RuntimeError):
    """Why a kernel could not be compiled."""


def compilations(
    target: str, dtype: str, widths: tuple[int, ...] = WIDTHS
) -> Iterator[Compilation]:
    """Compile all kernels for a kind of GPU and a precision, and yield them one by one."""
    return compile_jobs([Job(target, dtype, kind, width) for width in widths for kind in KINDS])


def compile_jobs(jobs: list[Job]) -> Iterator[Compilation]:
    """Compile the kernels of each job, all in one process, and yield them one by one."""
    words = [f"{job.target},{job.dtype},{job.kind},{job.width}" for job in jobs]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    try:
        for fields in json_lines(_MODULE, *words, environment=environment):
            yield Compilation(**fields)
    except ChildError as error:
        raise CompilationError(f"{jobs[0].target}, {jobs[0].dtype}: {error}") from None
