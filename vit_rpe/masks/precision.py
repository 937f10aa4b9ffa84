"""What a device can do, whether the values of a tensor may be looked at, and autocast."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]

Method = TypeVar("Method", bound=Callable[..., Tensor])


def has_float64(device: torch.device) -> bool:
    """Tell whether tensors in float64 exist on the device."""
    return device.type != "mps"


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


def full_precision(method: Method) -> Method:
    """Decorate a method of a mask to run with autocast off: sparse products know no bfloat16."""

    @wraps(method)
    def without_autocast(mask: Any, *args: Any) -> Tensor:
        device = next(iter(mask.tensors().values())).device.type
        if not torch.amp.is_autocast_available(device):  # the meta device has no autocast
            return method(mask, *args)
        with torch.autocast(device, enabled=False):
            return method(mask, *args)

    return without_autocast  # type: ignore[return-value]
