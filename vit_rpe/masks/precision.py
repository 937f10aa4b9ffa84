"""What a device can do, and whether the values of a tensor may be looked at."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]


def has_float64(device: torch.device) -> bool:
    """Whether tensors in float64 exist on the device."""
    return device.type != "mps"


def is_readable(x: Tensor) -> bool:
    """Whether a decision may depend on the values of x.

    Not on a GPU, which would be waited for, and not where there are no values: on the meta device,
    in fake tensors, and inside the transforms of torch.func.
    """
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return plain and not in_function_transform()


def in_function_transform() -> bool:
    """Whether the code runs inside torch.func.grad, vmap, jvp and the like."""
    if torch.compiler.is_compiling():
        return False
    return peek_interpreter_stack() is not None
