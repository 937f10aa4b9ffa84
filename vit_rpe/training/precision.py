"""Mixed precision, in the words of recipes, of accelerate and of torch."""

from __future__ import annotations

import os
from enum import Enum
from typing import Any

import torch
from accelerate import Accelerator

from .recipe.schema import Recipe


class Precision(Enum):
    """The precision of a run: accelerate's name for it, and the dtype of its products."""

    FLOAT32 = ("no", torch.float32)
    BFLOAT16 = ("bf16", torch.bfloat16)
    FLOAT16 = ("fp16", torch.float16)

    def __init__(self, accelerate_name: str, dtype: torch.dtype):
        self.accelerate_name, self.dtype = accelerate_name, dtype

    @classmethod
    def requested(cls, recipe: Recipe) -> Precision | None:
        """Return what a recipe asks for; None leaves the choice to accelerate launch."""
        if recipe.amp is None:
            return None
        return cls[recipe.amp_dtype.upper()] if recipe.amp else cls.FLOAT32

    @classmethod
    def settled(cls, accelerator: Accelerator) -> Precision:
        """Return the precision that an accelerator works with."""
        names = {each.accelerate_name: each for each in cls}
        return names.get(accelerator.mixed_precision, cls.FLOAT32)

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a recipe that ask for this precision."""
        mixed = self is not Precision.FLOAT32
        return {"amp": mixed, "amp_dtype": self.name.lower() if mixed else "bfloat16"}

    def __str__(self) -> str:
        mixed = self is not Precision.FLOAT32
        return f"mixed precision {self.accelerate_name}" if mixed else "float32"


def choose_kernels(recipe: Recipe) -> None:
    """Let this process use the GPU kernels that a recipe allows; to be called before CUDA starts.

    With `deterministic` an operation that has no such kernel raises an error that names it.
    """
    on_gpu = recipe.device != "cpu" and torch.cuda.is_available()
    tf32 = recipe.tf32 and on_gpu  # the switch is also one of CPUs that round in their own way
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if recipe.deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(recipe.deterministic)
