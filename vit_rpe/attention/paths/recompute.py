"""Recomputation: work that is done again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vit_rpe.precision import in_function_transform


def recomputed(function: Callable[..., Any], *args: Any, random: bool = False) -> Any:
    """Call `function(*args)`, keeping only the arguments for the backward pass.

    `random` says that the function draws random numbers, which must then be the same both times.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting() or in_function_transform():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=random)


def differentiable_once(
    backward: Callable[..., Any],
    instead: str = "path='product', or VIT_RPE_NATIVE=0 in the environment,",
) -> Callable[..., Any]:
    """Make a hand-written backward pass refuse to be differentiated again.

    torch's `once_differentiable` notices only if the incoming gradient has a history, and drops
    terms of the second derivative where it has none. `instead` names what can be differentiated.
    """

    @wraps(backward)
    def once(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "vit_rpe's compiled attention can be differentiated once, and create_graph=True "
                f"asks for more; {instead} can"
            )
        return backward(ctx, *grads)

    return once


def gradients_by_recomputing(
    make: Callable[..., Sequence[Tensor]],
    backward: Callable[..., Sequence[Tensor]],
    leaves: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Compute the gradients of `leaves`, of which only those `needed` are made.

    `make(*leaves)` is what the forward pass worked on, and is made again; `backward` turns these
    tensors into their gradients.
    """
    with torch.enable_grad():
        fresh = [
            x if x is None else x.detach().requires_grad_(need)
            for x, need in zip(leaves, needed, strict=True)
        ]
        made = make(*fresh)
    gradients = backward(*(x.detach() for x in made))
    pairs = [pair for pair in zip(made, gradients, strict=True) if pair[0].requires_grad]
    wanted = [x for x in fresh if x is not None and x.requires_grad]
    outputs, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, seeds))
    return [next(found) if x is not None and x.requires_grad else None for x in fresh]
