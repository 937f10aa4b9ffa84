"""Memory for time: work that is done again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Any], *args: Any, random: bool = False) -> Any:
    """`function(*args)`; only the arguments are kept for the backward pass.

    `random` says that the function draws random numbers, which must then be the same both times.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=random)
