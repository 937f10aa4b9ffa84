"""The compiled part of the package: two C++ files, built by torch on first use, or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

SWITCH = "VIT_RPE_NATIVE"
_SOURCES = [Path(__file__).with_name(name) for name in ("explicit_grid.cpp", "scan_grid.cpp")]
_FLAGS = ["-O3", "-fopenmp"]
_BUILDING = threading.Lock()
# by the name that torch gives to what a CPU can do
_VECTORS = {
    "AVX2": ["-mavx2", "-mfma"],
    "AVX512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma"],
}


def native_ops() -> Any | None:
    """`torch.ops.vit_rpe`, or None where it cannot be built or `VIT_RPE_NATIVE=0` forbids it.

    The first call on a machine compiles for some ten seconds; torch keeps the result in
    `TORCH_EXTENSIONS_DIR`. Without it everything works, in plain PyTorch and more slowly.
    """
    with _BUILDING:  # a build changes PATH for a while, and a second thread must not see that
        return _native_ops()


@cache
def _native_ops() -> Any | None:
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        _build()
    except Exception as error:  # a compiler can fail in any way, and none may stop an attention
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"vit_rpe's CPU kernel could not be built ({reason}); attention on a CPU will be "
            f"slower. It needs a C++ compiler and ninja; {SWITCH}=0 silences this.",
            stacklevel=2,
        )
        return None
    return torch.ops.vit_rpe


def compiled_ops() -> Any:
    """The same for a caller that knows that they are there."""
    ops = native_ops()
    assert ops is not None
    return ops


def _build() -> None:
    noise = logging.getLogger("torch.utils.cpp_extension")  # it warns where there is no CUDA
    level = noise.level
    noise.setLevel(logging.ERROR)
    # a ninja that was installed beside this interpreter counts, even if it is not activated
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([path, str(Path(sys.executable).parent)])
    try:
        from torch.utils.cpp_extension import load  # slow to import

        cpu = torch.backends.cpu.get_cpu_capability()
        load(
            _name(cpu),
            [str(source) for source in _SOURCES],
            extra_cflags=[*_FLAGS, *_VECTORS.get(cpu, [])],
            extra_ldflags=["-fopenmp"],
            is_python_module=False,
        )
    finally:
        os.environ["PATH"] = path
        noise.setLevel(level)


def _name(cpu: str) -> str:
    """One build for each source, torch and kind of CPU: machines may share a home."""
    digest = hashlib.sha256(torch.__version__.encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return f"vit_rpe_{re.sub('[^a-z0-9]', '', cpu.lower())}_{digest.hexdigest()[:12]}"
