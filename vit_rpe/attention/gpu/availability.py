"""Whether the fused kernels run: on this device, interpreted on a CPU, or not at all.

`VIT_RPE_TRITON=0` turns them off. With `TRITON_INTERPRET=1`, set before Triton is imported, and
`VIT_RPE_TRITON=1` they take tensors on a CPU, slowly: so they are tested without a GPU.
"""

from __future__ import annotations

import os
import threading
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

TRITON_ENV = "VIT_RPE_TRITON"
# What a GPU must have: bfloat16 in its tensor cores.
_LEAST_CAPABILITY = (8, 0)
_AMD = ("gfx90a", "gfx942", "gfx950")
_PROBING = threading.Lock()


@torch.compiler.assume_constant_result
def is_off() -> bool:
    return os.environ.get(TRITON_ENV) == "0"


@torch.compiler.assume_constant_result
def is_interpreted() -> bool:
    """Whether kernels may be interpreted, on tensors of any device."""
    asked = os.environ.get(TRITON_ENV) == "1" and os.environ.get("TRITON_INTERPRET") == "1"
    return asked and has_triton()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@torch.compiler.assume_constant_result
def no_device(device: torch.device) -> str | None:
    """Say why kernels do not run on a device; None if they do, or would if it were here."""
    if is_interpreted():
        return None if device.type in ("cpu", "cuda") else f"cannot be interpreted on {device.type}"
    if device.type != "cuda":
        return f"runs on CUDA and ROCm, and the tensors are on {device.type}"
    if not torch.cuda.is_available():
        return None if has_triton() else "needs Triton"
    return _old_device(torch.cuda.current_device() if device.index is None else device.index)


@cache  # warns once
def _old_device(index: int) -> str | None:
    if not has_triton():
        return _warned("needs Triton, which is not installed")
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]
        known = ", ".join(_AMD)
        return None if name in _AMD else _warned(f"knows the AMD GPUs {known}, and not {name}")
    capability = torch.cuda.get_device_capability(index)
    if capability < _LEAST_CAPABILITY:
        least, own = (".".join(map(str, x)) for x in (_LEAST_CAPABILITY, capability))
        return _warned(f"needs a GPU of compute capability {least}, and this one has {own}")
    return None


@torch.compiler.assume_constant_result
def no_kernel(
    kind: str, device: torch.device, dtype: torch.dtype, m: int, d: int, features: str, even: bool
) -> str | None:
    """Say why kernels of this kind do not run here, after trying them once on a few tokens.

    `even`: the number of tokens is a multiple of 16, for which other code is compiled.
    """
    real = device.type == "cuda" and torch.cuda.is_available() and not is_interpreted()
    if not real or _fake_tensors() or torch.cuda.is_current_stream_capturing():
        return None  # in the capture of a CUDA graph nobody may wait for a result
    with _PROBING:
        return probed(kind, device, dtype, m, d, features, even)


@cache  # warns once
def probed(
    kind: str, device: torch.device, dtype: torch.dtype, m: int, d: int, features: str, even: bool
) -> str | None:
    """Say why a call of a few tokens fails, forward or backward."""
    length = 48 if even else 50
    try:
        plain = torch.autocast(device.type, enabled=False)
        with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad(), plain:
            _small_call(kind, device, dtype, m, d, features, length)
    except Exception as error:  # a compiler can fail in any way, and none may stop an attention
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return _warned(f"could not be compiled ({reason:.300})")
    return None


def _small_call(
    kind: str,
    device: torch.device,
    dtype: torch.dtype,
    m: int,
    d: int,
    features: str,
    length: int,
) -> None:
    def tokens(channels: int) -> Any:
        x = torch.ones(2, length, 2, channels, device=device, dtype=dtype)
        return x.permute(2, 0, 1, 3).requires_grad_()

    table = torch.ones(2, 2 * length - 1, device=device, requires_grad=True)
    border = torch.zeros(2, 0, device=device)
    options = (kind, [length], 0, 0, features, True, 0.0, 1.0, 1 << 20)
    tensors = (tokens(m), tokens(m), tokens(d), table, border, None, None, None)
    out, *_ = torch.ops.vit_rpe.fused_attention(*tensors, *options)
    out.backward(torch.ones_like(out))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fake_tensors() -> bool:
    """Whether calls are only traced, with tensors that have no values; not by torch.compile."""
    if torch.compiler.is_compiling():
        return False
    key = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(key) is not None


def _warned(reason: str) -> str:
    warnings.warn(
        f"vit_rpe's fused attention {reason}; attention on this GPU will be slower. "
        f"{TRITON_ENV}=0 silences this.",
        stacklevel=2,
    )
    return reason
