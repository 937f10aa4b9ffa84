"""A watch over the attention layers of a model: what they are given, as it goes by.

Layers like ours (with `mask` and `attend`) are known by what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Seen = Callable[[str, Any, Tensor, Tensor, Tensor, Any], None]
"""Called with a layer's name, the layer, q, k, v (batch, heads, tokens, channels) and its mask."""


@contextmanager
def watched_attention(model: nn.Module, seen: Seen) -> Iterator[None]:
    """Call `seen` before each attention of a model's forward passes, while this is entered."""
    layers = []
    for name, layer in model.named_modules():
        if callable(getattr(layer, "attend", None)) and callable(getattr(layer, "mask", None)):
            layers.append(layer)
            _watch(name, layer, seen)
    try:
        yield
    finally:
        for layer in layers:
            del layer.attend  # the instance's, which hid the class's


def _watch(name: str, layer: Any, seen: Seen) -> None:
    attend = layer.attend

    def watched(q: Tensor, k: Tensor, v: Tensor, layout: Any, is_causal: bool) -> Tensor:
        seen(name, layer, q, k, v, layer.mask(q.shape[-2], q.device, layout, is_causal))
        return attend(q, k, v, layout, is_causal)

    layer.attend = watched
