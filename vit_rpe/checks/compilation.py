"""Compile the fused kernels for kinds of GPUs, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (32, 64, 128)
_MODULE = "vit_rpe.attention.gpu.ahead_of_time"


@dataclass(frozen=True)
class Compilation:
    """What a compiler made of a kernel for heads of `width` features and channels.

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
    command = [sys.executable, "-W", "ignore", "-m", _MODULE, target, dtype, *map(str, widths)]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            fields: dict[str, Any] = json.loads(line)
            yield Compilation(**fields)
        said = process.stderr.read().strip()
    if process.returncode:
        last = said.rpartition("\n")[2] or f"exit code {process.returncode}"
        raise CompilationError(f"{target}, {dtype}: {last}")
