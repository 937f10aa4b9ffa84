"""Compile the kernels for GPUs that are not here: registers, spills, shared memory, instructions.

    python -m vit_rpe.attention.gpu.ahead_of_time sm_80,bfloat16,linear,64 gfx942,float16,softmax,32

compiles the kernels of a training step for each target, precision, kind and width (M = D), and
prints one line of JSON per kernel. After a kind come options: linear+elu+floor+signed,
softmax+bias+bounded. Triton's compiler comes with all that it needs; a driver is not
asked for. It must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import backward_kernels, forward_kernels
from .configurations import KERNELS, Configuration, Family, KernelName, block, configuration


@dataclass(frozen=True)
class Target:
    """A kind of GPU, and the bytes of shared memory that a program may have there."""

    name: str
    gpu: GPUTarget
    shared: int
    matrix_units: str  # in the assembly
    atomics: str

    @property
    def amd(self) -> bool:
        return self.gpu.backend == "hip"

    @property
    def family(self) -> Family:
        if self.amd:
            return "amd"
        return "sm_80" if int(self.gpu.arch) < 90 else "sm_90"


# Those of shared memory that only set and clear bits order no sums: on Blackwell they keep the
# account of tensor memory.
_ATOMICS = r"\b(ATOM|ATOMG|RED|REDG|ATOMS(?!\.(OR|AND)\b))\b"
_NVIDIA = (r"\b(HMMA|HGMMA|UTCHMMA|UTCQMMA|QGMMA|UTCOMMA)\b", _ATOMICS)
_AMD = (r"\bv_mfma_", r"\b(global|flat|buffer|ds)_(atomic|add_f32|add_rtn)")
TARGETS = {
    target.name: target
    for target in (
        Target("sm_80", GPUTarget("cuda", 80, 32), 163 << 10, *_NVIDIA),
        Target("sm_86", GPUTarget("cuda", 86, 32), 99 << 10, *_NVIDIA),
        Target("sm_90", GPUTarget("cuda", 90, 32), 227 << 10, *_NVIDIA),
        Target("sm_100", GPUTarget("cuda", 100, 32), 227 << 10, *_NVIDIA),
        Target("sm_120", GPUTarget("cuda", 120, 32), 99 << 10, *_NVIDIA),
        Target("gfx90a", GPUTarget("hip", "gfx90a", 64), 64 << 10, *_AMD),
        Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 << 10, *_AMD),
        Target("gfx950", GPUTarget("hip", "gfx950", 64), 160 << 10, *_AMD),
    )
}
_FLOATS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
_TOKENS = {"q", "k", "v", "out", "grad", "dq", "dk", "dv"}
_INDICES = {"place_q", "place_k", "token"}
_NUMBERS = {"scale", "floor"}


@dataclass(frozen=True)
class Report:
    """The outcome of compiling a kernel; `stack` is what did not fit into registers, in bytes."""

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


def compiled(
    kernel: KernelName,
    target: Target,
    dtype: torch.dtype,
    width: int,
    config: Configuration | None = None,
    kind: str = "linear",
) -> Report:
    """Compile a kernel for M = D = width, whose strides are multiples of 16."""
    softmax, options = _options(kind)
    wide = dtype == torch.float16 and not softmax
    if config is None:
        how = dtype, wide, target.family, options["FEATURES"]
        config = configuration(kernel, width, width, *how)
    function = _function(kernel)
    constants = {
        "M": width,
        "D": width,
        "MP": block(width),
        "DP": block(width),
        "BM": config.bm,
        "BN": config.bn,
        "SOFTMAX": softmax,
        "WIDE": wide,
        **options,
        "FIRST": True,
        "BI": config.bm,
        "BE": config.bn,
    }
    source = _source(function, dtype, constants)
    binary = triton.compile(source, target=target.gpu, options=config.options())
    text = assembly(binary, target)
    used = _amd_resources(text) if target.amd else _nvidia_resources(text)
    return Report(
        kernel=kernel if kernel == "table" else kind if kernel in kind else f"{kind} {kernel}",
        target=target.name,
        dtype=str(dtype).removeprefix("torch."),
        width=width,
        tile=f"{config.bm} x {config.bn}, {config.warps} warps, {config.stages} stages",
        shared=binary.metadata.shared,
        shared_limit=target.shared,
        matrix_instructions=len(re.findall(target.matrix_units, text)),
        atomics=len(re.findall(target.atomics, text)),
        **used,
    )


def kernels(kind: str) -> list[KernelName]:
    """The kernels of a training step; that of tables is the same for both kinds."""
    others = ("linear", "table") if _options(kind)[0] else ("softmax",)
    return [kernel for kernel in KERNELS if kernel not in others]


def _options(kind: str) -> tuple[bool, dict[str, Any]]:
    """Whether a kind like linear+elu+floor is softmax, and the constants of its options."""
    name, *words = kind.split("+")
    maps = [word for word in words if word in ("elu", "square", "none")]
    known = ["signed", "bias", "floor", "bounded", *maps]
    if name not in ("linear", "softmax") or not set(words) <= set(known):
        raise ValueError(f"wanted linear or softmax, and options like +signed, got {kind!r}")
    softmax = name == "softmax"
    return softmax, {
        "FEATURES": "none" if softmax else (maps or ["relu"])[0],
        "NONNEGATIVE": "signed" not in words,
        "BIAS": "bias" in words,
        "FLOOR": "floor" in words,
        "BOUNDED": "bounded" in words,
    }


def _function(kernel: KernelName) -> Any:
    module = forward_kernels if kernel in ("linear", "softmax") else backward_kernels
    return getattr(module, f"{kernel}_kernel")


def _source(function: Any, dtype: torch.dtype, constants: dict[str, Any]) -> ASTSource:
    """The kernel with types as in a call: pointers and strides of tokens are aligned."""
    signature, attributes = {}, {}
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    if not constants.get("BIAS", False):
        constants |= {name: None for name in ("bias", "dbias") if name in function.arg_names}
    for number, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in _TOKENS:
            signature[name] = _FLOATS[dtype]
        elif name in _INDICES:
            signature[name] = "*i32"
        elif name in ("table", "bias", "statistic", "shift", "dmask", "dtable", "dbias"):
            signature[name] = "*fp32"
        else:
            signature[name] = "fp32" if name in _NUMBERS else "i32"
        stride = re.fullmatch(r"(q|k|v|o|g|dq|dk|dv)_[tsl]", name)
        if signature[name].startswith("*") or stride:
            attributes[(number,)] = [["tt.divisibility", 16]]
    return ASTSource(function, signature, constants, attributes)


def _nvidia_resources(text: str) -> dict[str, int]:
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump does not say what a kernel uses: {text:.300}")
    registers, stack, _, local = map(int, found.groups())
    return {"registers": registers, "stack": stack + local}


def _amd_resources(text: str) -> dict[str, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"the assembly does not say {name}")
        return int(found[1])

    return {
        "registers": number("vgpr_count"),
        "stack": number("private_segment_fixed_size"),
    }


def assembly(binary: Any, target: Target) -> str:
    """Read what a compiled kernel uses, and its instructions."""
    if target.amd:
        return binary.asm["amdgcn"]
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [tools / "cuobjdump", "--dump-resource-usage", "--dump-sass", file.name]
        # the disassembler is beside it
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": str(tools)}
        )
    return done.stdout + done.stderr


def main(argv: list[str]) -> None:
    for job in argv:
        target, dtype, kind, width = job.split(",")
        for kernel in kernels(kind):
            made = TARGETS[target], getattr(torch, dtype), int(width)
            print(json.dumps(asdict(compiled(kernel, *made, kind=kind))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
