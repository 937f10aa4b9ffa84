"""Modules and tensors that claim to be on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

Module = TypeVar("Module", bound=nn.Module)


@contextmanager
def cuda_fakes() -> Iterator[FakeTensorMode]:
    """Make every new tensor a fake one; real tensors are refused."""
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        yield mode


def faked(module: Module, device: str = "cuda") -> Module:
    """Replace the parameters and buffers of a module by fake ones, and return it.

    To be called inside `cuda_fakes`, with a module that was built outside: constructors look at
    values.
    """
    known: dict[int, Tensor] = {}  # shared ones stay shared

    def fake(x: Tensor) -> Tensor:
        if id(x) not in known:
            made = torch.empty(x.shape, dtype=x.dtype, device=device)
            is_parameter = isinstance(x, nn.Parameter)
            known[id(x)] = nn.Parameter(made, x.requires_grad) if is_parameter else made
        return known[id(x)]

    for part in module.modules():
        for tensors in cast("list[dict[str, Any]]", [part._parameters, part._buffers]):
            for name, x in tensors.items():
                tensors[name] = None if x is None else fake(x)
    return module
