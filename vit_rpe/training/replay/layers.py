"""The layers of a model, as people count them: blocks, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def layers_of(net: nn.Module) -> list[str]:
    """Return the names of a model's layers, in order: its parts, and the parts of its lists."""
    names: list[str] = []
    for name, part in net.named_children():
        listed = isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1
        names += [f"{name}.{inner}" for inner, _ in part.named_children()] if listed else [name]
    return names


def layer_of(name: str, layers: Iterable[str]) -> str:
    """Return the layer that a module or a parameter is in; one outside of all is its own."""
    return next((layer for layer in layers if f"{name}.".startswith(f"{layer}.")), name)
