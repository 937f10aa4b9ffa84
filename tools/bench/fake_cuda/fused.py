"""Costs of the fused kernels of `vit_rpe.attention.gpu`: kernels, bytes, operations on whole tiles.

q, k and v are read once, for programs of one sample and head run side by side and share a cache.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from torch import Tensor

from vit_rpe.attention.gpu.configurations import Configuration, configuration
from vit_rpe.attention.gpu.launch import Pieces

from .counter import register_formula

# Kernels that make one flat table of tables and borders, and gradients of borders of each piece.
_FLAT, _BORDER = 2, 8


def register() -> None:
    """Let a `Counter` know the operators."""
    register_formula("vit_rpe::fused_attention", _forward)
    register_formula("vit_rpe::fused_attention_backward", _backward)


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any, out: Any) -> dict[str, Any]:
    kind, prefix = rest[5], rest[7]
    config = _config(kind, q, v, kind)
    products = q.shape[-1] + v.shape[-1]
    return {
        "flops": _on_tiles(q, config) * products,
        "rate": "triton",
        "kernels": 1 + _FLAT * (prefix > 0) + (kind == "softmax"),  # and logarithms
    }


def _backward(
    grad: Tensor, result: Tensor, statistic: Tensor, flat: Tensor, q: Tensor, k: Tensor, v: Tensor,
    *rest: Any, out: Any,
) -> dict[str, Any]:  # fmt: skip
    kind, prefix, budget, of_mask = rest[5], rest[7], rest[-2], rest[-1]
    m, d = q.shape[-1], v.shape[-1]
    query, key, mask = (_config(name, q, v, kind) for name in ("query", "key", "mask"))
    flops = _on_tiles(q, query) * (m + d + m * (kind == "softmax"))
    flops += _on_tiles(q, key) * 2 * (m + d)
    kernels = 2
    tokens = [grad, result, statistic, q, k, v, *out[:3]]
    moved = sum(map(_bytes, tokens)) + sum(map(_bytes, (grad, statistic, statistic, q, k, v)))
    if of_mask:
        flops += _on_tiles(q, mask) * (m + d)
        tables, samples, length, _ = q.shape
        pieces = Pieces.of(tables, samples, length, budget, mask, rest[3] is not None).all()
        kernels += len(pieces) * (2 + _BORDER * (prefix > 0))
        moved += sum(map(_bytes, (grad, statistic, statistic, q, k, v)))
        # written, and read along diagonals
        moved += sum(2 * 4 * p.parts * p.tables * p.rows * length for p in pieces)
    return {"flops": flops, "rate": "triton_backward", "kernels": kernels, "bytes": moved}


def _config(name: Any, q: Tensor, v: Tensor, kind: str) -> Configuration:
    wide = q.element_size() == 2 and str(q.dtype) == "torch.float16" and kind == "linear"
    return configuration(name, q.shape[-1], v.shape[-1], q.dtype, wide, "sm_80")


def _on_tiles(q: Tensor, config: Configuration) -> int:
    """Multiply-adds of whole tiles, times 2, for each channel."""
    tables, samples, length, _ = q.shape
    rows, columns = (ceil(length / n) * n for n in (config.bm, config.bn))
    return 2 * tables * samples * rows * columns


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
