"""Precision: what a device has, whether values may be looked at, code without autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]

Method = TypeVar("Method", bound=Callable[..., Tensor])


def has_float64(device: torch.device) -> bool:
    """Tell whether float64 exists on the device: Apple's and some of Intel's lack it."""
    if device.type == "xpu" and torch.xpu.is_available():
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def to_float64(x: Tensor) -> Tensor:
    """Return x in float64; raise ValueError on a device that does not have it."""
    if not has_float64(x.device):
        raise ValueError(
            f"float32 does not hold the range of these features, and {x.device.type} has no "
            "float64; use the CPU"
        )
    return x.double()


def is_readable(x: Tensor) -> bool:
    """Tell whether a decision may depend on the values of x.

    Not on a GPU, which would be waited for, and not where there are no values: on the meta device,
    in fake tensors, and inside the transforms of torch.func.
    """
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return plain and not in_function_transform()


def in_function_transform() -> bool:
    """Tell whether the code runs inside torch.func.grad, vmap, jvp and the like."""
    if torch.compiler.is_compiling():
        return False
    return peek_interpreter_stack() is not None


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return autocast's precision of matrix products on a kind of device; None if it is off.

    The meta device has no autocast at all.
    """
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


@torch.compiler.assume_constant_result
def tf32_allowed(device: str) -> bool:
    """Tell whether products of float32 on a kind of device may be rounded to TF32."""
    if device != "cuda":
        return False
    matmul = torch.backends.cuda.matmul
    # torch 2.9 and later; the old switch raises an error where somebody has set the new one
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def without_autocast(device: str) -> AbstractContextManager:
    """Turn autocast off in a `with` block: tensors keep the precision that they have."""
    if autocast_dtype(device) is None:
        return nullcontext()
    return torch.autocast(device, enabled=False)


def full_precision(method: Method) -> Method:
    """Decorate a method of a mask to run with autocast off: sparse products know no bfloat16."""

    @wraps(method)
    def in_full_precision(mask: Any, *args: Any) -> Tensor:
        with without_autocast(mask.device.type):
            return method(mask, *args)

    return in_full_precision  # type: ignore[return-value]
