"""Which path and form each attention layer takes, in words, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import nn

from .plan import AttentionPlan, AttentionRequest, plan_attention, refusals
from .structure import describe

_FORMS = {
    "torch": "plain PyTorch",
    "cpu": "C++",
    "gpu": "a fused GPU kernel",
    "sdpa": "PyTorch's fused attention",
    "blocks": "blocks in PyTorch",
    "cpu blocks": "blocks in C++",
}


def explain(
    module: nn.Module, *, batch_size: int = 1, device: torch.device | str | None = None
) -> None:
    """Print how each attention layer of a model is computed, and why not in another way.

    By default for one sample on the device where the model is; `device="cuda"` asks what it would
    do there.
    """
    print(explanation(module, batch_size=batch_size, device=device))


def explanation(
    module: nn.Module, *, batch_size: int = 1, device: torch.device | str | None = None
) -> str:
    """The text that `explain` prints."""
    device = None if device is None else torch.device(device)
    texts = [
        (name, _of_layer(layer.attention_request(batch_size, device, tokens)))
        for name, layer, tokens in _layers(module)
    ]
    if not texts:
        return "no attention layer here is planned by vit_rpe"
    groups = [(text, [name for name, _ in same]) for text, same in groupby(texts, lambda x: x[1])]
    return "\n".join(f"{_names(names)}: {text}" for text, names in groups)


def describe_plan(request: AttentionRequest) -> str:
    """Say in one line how a request is computed: `explicit path in C++, mask Toeplitz on ...`."""
    heads = f"{request.batch_shape[-1]} heads"
    return f"{_way(plan_attention(request))}, mask {describe(request.mask)}, {heads}"


def _layers(module: nn.Module) -> Iterator[tuple[str, Any, int | None]]:
    """The layers that can say what they would ask of the plan, and the tokens of their model."""
    tokens: int | None = None
    for name, layer in module.named_modules():  # a model comes before its layers
        tokens = getattr(layer, "num_tokens", tokens)
        if hasattr(layer, "attention_request"):
            yield name or type(layer).__name__, layer, tokens


def _of_layer(request: AttentionRequest) -> str:
    plan = plan_attention(request)
    sizes = f"{request.num_features} features, {request.num_values} channels"
    lines = [
        f"{_way(plan)}, on {request.device.type}",
        f"  mask    {describe(request.mask)}; {request.batch_shape[-1]} heads, {sizes}",
        f"  reason  {plan.reason}",
    ]
    lines += [f"  blocks  of {blocks} slices" for blocks in plan.blocks if blocks]
    for form, refusal in refusals(request):
        if refusal is not None:
            lines.append(f"  not     {form.path} in {_FORMS[form.name]}: {refusal}")
    return "\n".join(lines)


def _way(plan: AttentionPlan) -> str:
    kernel = "softmax, " if plan.kernel == "softmax" else ""
    return f"{kernel}{plan.path} path in {_FORMS[plan.form]}"


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
