"""Requests and estimates for tests of the plan."""

from typing import Any

import torch

from vit_rpe.attention import AttentionRequest, PathCosts
from vit_rpe.attention.cost import default_costs
from vit_rpe.attention.plan import refusals
from vit_rpe.masks import Mask


def request(
    mask: Mask, heads: int, m: int, d: int, device: str = "cpu", **options: Any
) -> AttentionRequest:
    """A call with `heads` heads, m features and d channels; of narrow range unless said."""
    options = {"wide_range": False, "dtype": torch.float32, **options}
    return AttentionRequest(mask, (1, heads), m, d, device=torch.device(device), **options)


def estimates(
    mask: Mask, heads: int, m: int, d: int, costs: PathCosts | None = None, **options: Any
) -> dict[str, float]:
    """The cost of the first form of each path that serves."""
    call = request(mask, heads, m, d, **options)
    constants = costs or default_costs(call.device.type)
    found: dict[str, float] = {}
    for form, refusal in refusals(call):
        if refusal is None:
            found.setdefault(form.path, form.cost(call, constants))
    return found
