"""The C++ operators, built by torch on first use, or not at all."""

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

import torch

NATIVE_ENV = "VIT_RPE_NATIVE"
_HERE = Path(__file__).parent
_NAMES = ("block_softmax.cpp", "explicit.cpp", "gram.cpp", "scan.cpp", "softmax.cpp")
_SOURCES = [_HERE / name for name in _NAMES]
_HEADERS = [_HERE / "grid.h", _HERE / "vectors.h"]
# loops that round to whole numbers and compare become vectors only if neither may raise a flag
_FLAGS = ["-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
_BUILDING = threading.Lock()
# by the name that torch gives to what a CPU can do
_VECTORS = {
    "AVX2": ["-mavx2", "-mfma"],
    "AVX512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma"],
}


@torch.compiler.assume_constant_result
def is_built() -> bool:
    """Whether `torch.ops.vit_rpe` has the operators; builds them if that has not been tried.

    The first call on a machine compiles for some ten seconds; torch keeps the result in
    `TORCH_EXTENSIONS_DIR`. Where they cannot be built, or `VIT_RPE_NATIVE=0` forbids it, everything
    works in plain PyTorch, and more slowly.
    """
    with _BUILDING:  # a build changes PATH for a while, and a second thread must not see that
        return _is_built()


@cache
def _is_built() -> bool:
    if os.environ.get(NATIVE_ENV, "1") == "0":
        return False
    try:
        _build()
    except Exception as error:  # a compiler can fail in any way, and none may stop an attention
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"vit_rpe's CPU kernels could not be built ({reason}); attention on a CPU will be "
            f"slower. They need a C++ compiler and ninja; {NATIVE_ENV}=0 silences this.",
            stacklevel=2,
        )
        return False
    from .operators import register_operators  # what torch must know of the operators, once built

    register_operators()
    return True


def _build() -> None:
    noise = logging.getLogger("torch.utils.cpp_extension")  # it warns where there is no CUDA
    level = noise.level
    noise.setLevel(logging.ERROR)
    # a ninja that was installed with this interpreter counts, even if it is not activated
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([path, str(Path(sys.executable).parent)])
    try:
        from torch.utils.cpp_extension import load  # slow to import

        cpu = torch.backends.cpu.get_cpu_capability()
        _announce(_name(cpu))
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


def _announce(name: str) -> None:
    """Say why nothing happens for a while, if these sources have not been compiled here before."""
    from torch.utils import cpp_extension

    folder = Path(cpp_extension._get_build_directory(name, False))
    if not (folder / f"{name}.so").is_file():
        logging.getLogger("vit_rpe").warning(
            "vit_rpe compiles its C++ attention for this CPU, once: about half a minute"
        )


def _name(cpu: str) -> str:
    """One build for each source, torch and kind of CPU: machines may share a home.

    And for each folder: ninja would compile again whenever the same sources lie elsewhere.
    """
    digest = hashlib.sha256(f"{torch.__version__} {_HERE}".encode())
    for source in (*_SOURCES, *_HEADERS):
        digest.update(source.read_bytes())
    return f"vit_rpe_{re.sub('[^a-z0-9]', '', cpu.lower())}_{digest.hexdigest()[:12]}"
