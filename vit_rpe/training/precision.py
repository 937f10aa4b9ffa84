"""Mixed precision, in the words of recipes, of accelerate and of torch."""

from __future__ import annotations

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
