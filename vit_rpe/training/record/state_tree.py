"""Nested state of optimizers as JSON and tensors: nothing in it can run when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, str, type(None))
DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


def flatten(value: Any, name: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Return JSON that can be turned back into `value`, and the tensors that it names."""
    tensors: dict[str, Tensor] = {}
    return _flatten(value, name, tensors), tensors


def restore(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that was flattened into this tree and these tensors."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dtype":
        return DTYPES[content]
    if kind == "dict":
        return {key: restore(value, tensors) for key, value in content}
    values = [restore(value, tensors) for value in content]
    return tuple(values) if kind == "tuple" else values


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # a copy: safetensors has neither views of one storage nor odd strides
        tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, (str, int)) for key in value):
            raise TypeError(f"keys of {name or 'a state'} must be strings or integers")
        return {"dict": [[k, _flatten(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [_flatten(each, f"{name}.{i}", tensors) for i, each in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    raise TypeError(f"{name} is a {type(value).__name__}, which no checkpoint can hold")
