"""Softmax attention inside the parts of a mask, on a CPU: such as the graphs of a batch.

Same numbers as `paths/blocks.py`, several times as fast: a part and head at a time go from q, k and
v to the result, and no matrix is stored but that of the mask. The loops are in `block_softmax.cpp`.
Shapes: L tokens, H heads of all samples, C channels of q and k, D of v; E entries of all blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, block_cost
from ..paths.padding import groups_of
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import log_weights, safe_softmax
from .explicit import unavailable


class CpuBlockSoftmax:
    """Any mask in parts, without prefix tokens and weights of tokens."""

    kernel: ClassVar[KernelName] = "softmax"
    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "cpu blocks"

    def supports(self, request: AttentionRequest) -> str | None:
        sizes = request.leaf.part_sizes
        if sizes is None:
            return f"needs a mask in parts, got {structure.describe(request.mask)}"
        if request.mask is not request.leaf:
            return "has neither prefix tokens nor weights of tokens"
        if request.dropout:
            return "has no dropout"
        if request.tracing:
            return "cannot be traced"
        if request.autocast is not None:
            return f"computes in float32, and autocast asks for {request.autocast}"
        budget = request.resolved_budget("explicit")
        if _entries(sizes) * request.dtype.itemsize > budget:
            return f"needs more than the budget of {budget} bytes for its blocks"
        return unavailable(request)

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        sizes = request.leaf.part_sizes
        assert sizes is not None
        m, d = request.num_features, request.num_values
        return block_cost(request.num_heads, _entries(sizes), 1, m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        mask, dtype = request.mask, request.dtype
        assert mask.part_sizes is not None
        with without_autocast(q.device.type):
            bias = _logarithms(mask, dtype)
            if mask.batch_shape.numel() > 1:
                bias = bias.expand(*request.batch_shape, -1)
            bias = bias.reshape(-1, bias.shape[-1])
            heads = (x.to(dtype).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
            places, scale = _places(mask.part_sizes), request.resolved_scale
            out, _ = torch.ops.vit_rpe.softmax_blocks(*heads, bias, places, scale)
        return out.reshape(*request.batch_shape, *out.shape[-2:]).to(v.dtype)


def _entries(sizes: tuple[int, ...]) -> int:
    """Count the entries of all blocks, with those of padding."""
    return sum(len(group.sizes) * group.size**2 for group in groups_of(sizes))


def _logarithms(mask: Mask, dtype: torch.dtype) -> Tensor:
    """Form the logarithms of all blocks of a mask, (..., E); a constant mask keeps them."""
    assert mask.part_sizes is not None
    groups = groups_of(mask.part_sizes)

    def make() -> Tensor:
        blocks = [mask.diagonal_blocks(g.starts, g.sizes).flatten(-3) for g in groups]
        joined = blocks[0] if len(blocks) == 1 else torch.cat(blocks, -1)
        return log_weights(joined.to(dtype))

    return mask.kept(("logarithms of parts", dtype), make)


@lru_cache(maxsize=256)
def _places(sizes: tuple[int, ...]) -> Tensor:
    """Say of each part where its tokens begin, their number, and where its entries are: (B, 4)."""
    rows: list[tuple[int, int, int, int]] = []
    first = 0
    for group in groups_of(sizes):
        for start, size in zip(group.starts, group.sizes, strict=True):
            rows.append((start, size, first, group.size))
            first += group.size**2
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)


def softmax_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, blocks: Tensor, scale: float
) -> Tensor:
    """Do in PyTorch what the operator does: (H, L, C) to (H, L, D), part by part."""
    results, tokens = [], []
    for start, size, first, stride in blocks.tolist():
        own = slice(start, start + size)
        part = bias[:, first : first + size * stride].unflatten(-1, (size, stride))[..., :size]
        weights = safe_softmax(q[:, own] @ k[:, own].mT * scale + part)
        results.append(weights @ v[:, own])
        tokens.append(torch.arange(start, start + size))
    return torch.cat(results, 1)[:, torch.cat(tokens).argsort()]
