"""Tiles, warps and stages of the fused kernels: a fixed table, by width, precision and device.

Nothing is tuned at run time: other tiles add in another order, and a run would not repeat its bits.
The entries are the largest that compile without spills for every device of their row
(`tools/bench/gpu_kernels.py`); their speed has not been measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

KernelName = Literal["linear", "softmax", "query", "key", "mask", "table"]
KERNELS: tuple[KernelName, ...] = ("linear", "softmax", "query", "key", "mask", "table")
Family = Literal["sm_80", "sm_90", "amd"]
"""Kinds of GPU with entries of their own: NVIDIA's before and from compute capability 9, AMD's."""


@dataclass(frozen=True)
class Configuration:
    """How a program works: BM queries by BN keys at a time, with so many warps and stages."""

    bm: int
    bn: int
    warps: int = 4
    stages: int = 2

    def options(self) -> dict[str, int | bool]:
        """Triton's own arguments of a launch, and of a compilation."""
        fused = {"enable_fp_fusion": True}  # multiply-adds, whatever Triton's default is
        return {"num_warps": self.warps, "num_stages": self.stages, **fused}


def block(channels: int) -> int:
    """The channels of a tile: a power of 2, and at least what a tensor core multiplies."""
    return max(16, 1 << (channels - 1).bit_length())


def family(device: torch.device) -> Family:
    """The kind of GPU that a device is; interpreted, a CPU is the oldest."""
    if torch.version.hip is not None:
        return "amd"
    if device.type != "cuda":
        return "sm_80"
    return "sm_80" if torch.cuda.get_device_capability(device) < (9, 0) else "sm_90"


_C = Configuration
# By what a program keeps (rows of queries, keys, a tile of the mask), and the wider of M and D.
# Operands of 16 bits:
_NARROW = {
    ("rows", 32): _C(64, 32), ("rows", 64): _C(64, 64), ("rows", 128): _C(64, 32),
    ("keys", 32): _C(64, 32), ("keys", 64): _C(64, 32), ("keys", 128): _C(32, 32, 8),
    ("mask", 32): _C(64, 32), ("mask", 64): _C(64, 32), ("mask", 128): _C(64, 32),
}  # fmt: skip
# Operands of float32, rounded to TF32 by the matrix unit:
_WIDE = {
    ("rows", 32): _C(64, 64), ("rows", 64): _C(64, 32), ("rows", 128): _C(32, 32),
    ("keys", 32): _C(32, 32), ("keys", 64): _C(32, 32), ("keys", 128): _C(32, 32, 8),
    ("mask", 32): _C(64, 32), ("mask", 64): _C(64, 32), ("mask", 128): _C(32, 32, 4, 1),
}  # fmt: skip
# What differs on other GPUs than the oldest: tensor cores of Hopper want 64 rows of keys.
_OTHERWISE = {
    ("sm_90", "narrow"): {("keys", 64): _C(32, 64)},
    ("amd", "narrow"): {("keys", 64): _C(32, 64), ("keys", 128): _C(32, 32)},
    ("amd", "wide"): {("rows", 128): _C(32, 32, 4, 1), ("keys", 128): _C(16, 32, 4, 1)},
}


# What differs where ELU is applied inside: its exponentials need registers.
_ELU = {("sm_80", "narrow"): {("rows", 64): _C(64, 32)}}


def configuration(
    kernel: KernelName,
    m: int,
    d: int,
    dtype: torch.dtype,
    wide: bool,
    gpu: Family,
    features: str = "none",
) -> Configuration:
    """The configuration for M features and D channels; `wide`: products of float32 operands."""
    if kernel == "table":
        return Configuration(32, 64)
    operands = "wide" if wide or dtype == torch.float32 else "narrow"
    kept = {"key": "keys", "mask": "mask"}.get(kernel, "rows")
    entry = kept, max(32, block(m), block(d))
    tables = [_OTHERWISE.get((gpu, operands), {}), {"narrow": _NARROW, "wide": _WIDE}[operands]]
    if features == "elu":
        tables.insert(0, _ELU.get((gpu, operands), {}))
    return next(table[entry] for table in tables if entry in table)
