"""Attention inside the parts of a mask, such as the graphs of a batch: explicit, and by softmax.

Parts of about the same size are padded to one size and go through batched matrix products together,
so that nothing is spent on what lies between parts. O(sum of squared sizes).

Shapes: L tokens, H heads of all samples, M features, C channels of q and k, D value channels; a
group has B blocks of n tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, block_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from ..reference import log_weights
from .padding import Group, padded_parts
from .recompute import recomputed

# Tensors of the size of a group's matrices that are alive at once, at worst.
_ALIVE = 4


class _Blocks:
    """Common to both forms: they need a mask whose parts are known, and each of them small."""

    path: ClassVar[ConcretePath] = "explicit"
    name: ClassVar[str] = "blocks"

    def supports(self, request: AttentionRequest) -> str | None:
        sizes = request.leaf.part_sizes
        if sizes is None:
            return f"needs a mask in parts, got {structure.describe(request.mask)}"
        if request.tracing:
            return "cannot be traced"
        most = request.resolved_budget("explicit")
        if max(sizes) ** 2 * request.dtype.itemsize * _ALIVE > most:
            return f"needs more than the budget of {most} bytes for a part of {max(sizes)} tokens"
        return None

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        sizes = request.leaf.part_sizes
        assert sizes is not None
        parts = padded_parts(sizes, request.device)
        entries = sum(len(group.starts) * group.size**2 for group in parts.groups)
        m, d = request.num_features, request.num_values + 1
        return block_cost(request.num_heads, entries, len(parts.groups), m, d, costs)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()


class BlockExplicit(_Blocks):
    """Any mask in parts, by its blocks on the diagonal."""

    kernel: ClassVar[KernelName] = "linear"

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
            def block(group: Group, which: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                matrix = _by_heads(_matrices(mask, group, q.dtype), request, which)
                return _linear_block(q, k, v, matrix, request)

            with without_autocast(q.device.type):
                result = _in_blocks(block, mask, plan.budget, q, k, v)
            return result[..., :-1], result[..., -1:].detach()

        features, floor = request.features, request.floor
        return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)


def _linear_block(
    q: Tensor, k: Tensor, v: Tensor, matrix: Tensor, request: AttentionRequest
) -> Tensor:
    """A v, with v's last column of ones, and the absolute sums of the rows: (B, H, n, D + 2)."""
    weights = (q @ k.mT) * matrix
    sums = F.dropout(weights, request.dropout) @ v
    if request.dropout:  # the normalizer counts every key
        sums = torch.cat([sums[..., :-1], weights.sum(-1, keepdim=True)], -1)
    if request.nonnegative:
        absolute = sums[..., -1:].detach()
    else:
        absolute = torch.linalg.vector_norm(weights.detach(), 1, dim=-1, keepdim=True)
    return torch.cat([sums, absolute], -1)


class BlockSoftmax(_Blocks):
    """Any mask in parts: softmax with the logarithms of its blocks as bias."""

    kernel: ClassVar[KernelName] = "softmax"

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        x = structure.softmax_inputs(q, k, v, request.mask)
        # where autocast asks for a lower precision the blocks have it, and their bias has not
        dtype = request.autocast or torch.promote_types(q.dtype, k.dtype)
        q, k, v = (y.to(dtype) for y in (x.q, x.k, x.v))

        def block(
            group: Group, which: slice, q: Tensor, k: Tensor, v: Tensor, *key_bias: Tensor
        ) -> Tensor:
            bias, empty = _logarithms(x.mask, group, torch.promote_types(dtype, torch.float32))
            bias = _by_heads(bias, request, which)
            empty = None if empty is None else _by_heads(empty, request, which)
            if key_bias:
                bias = bias + key_bias[0].mT.to(bias.dtype)
                empty = (bias == -torch.inf).all(-1, keepdim=True)
            return _softmax_block(q, k, v, bias, empty, request)

        with without_autocast(q.device.type):
            bias = [] if x.bias is None else [x.bias.expand(q.shape[:-1])[..., None]]
            out = _in_blocks(block, x.mask, plan.budget, q, k, v, *bias)
            return x.finish(out.to(x.v.dtype))

    def supports(self, request: AttentionRequest) -> str | None:
        if structure.without_token_weights(request.mask) is not request.leaf:
            return "has no prefix tokens"
        return super().supports(request)


def _softmax_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    empty: Tensor | None,
    request: AttentionRequest,
) -> Tensor:
    scale, dropout = request.resolved_scale, request.dropout
    if empty is not None:
        bias = bias.masked_fill(empty, 0.0)
    if q.device.type == "cpu":  # small matrices: batched products are faster than fused kernels
        logits = ((q * scale) @ k.mT).to(bias.dtype) + bias
        out = F.dropout(logits.softmax(-1).to(v.dtype), dropout) @ v
    else:
        bias = bias.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])  # whole: fused kernels
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale
        )
    return out if empty is None else out.masked_fill(empty, 0.0)


# --- the walk over blocks -----------------------------------------------------------------------


def _in_blocks(block: Callable[..., Tensor], mask: Mask, budget: int, *tensors: Tensor) -> Tensor:
    """Apply `block` to the tokens of each block, (B, H, n, C) each, and join the results."""
    assert mask.part_sizes is not None
    parts = padded_parts(mask.part_sizes, tensors[0].device)
    lead = tensors[0].shape[:-2]
    heads = lead.numel()
    placed = [parts.spread(x.expand(*lead, *x.shape[-2:])) for x in tensors]
    work = [
        (group, which)
        for group in parts.groups
        for which in group.slices(budget, heads * tensors[0].element_size() * _ALIVE)
    ]
    results = []
    for group, which in work:
        args = (group, which, *(group.take(x, which) for x in placed))
        # blocks that are too many to keep are made again in the backward pass
        out = (
            recomputed(block, *args, random=True) if len(work) > len(parts.groups) else block(*args)
        )
        results.append(out.transpose(1, 2).flatten(0, 1))
    return parts.join(results, lead)


def _by_heads(blocks: Tensor, request: AttentionRequest, which: slice) -> Tensor:
    """Bring some blocks of a mask, (..., B, n, n), to (B, H, n, n), or H = 1 for all heads."""
    lead = blocks.shape[:-3]
    if lead.numel() > 1:
        blocks = blocks.expand(*request.batch_shape, *blocks.shape[-3:])
    blocks = blocks.reshape(-1, *blocks.shape[-3:])[:, which]
    return blocks.movedim(0, 1)


def _matrices(mask: Mask, group: Group, dtype: torch.dtype) -> Tensor:
    """Form the blocks of a mask in a group; a constant mask keeps them."""
    formed = mask.kept(
        ("blocks", group, dtype), lambda: mask.diagonal_blocks(group.starts, group.sizes)
    )
    return formed.to(dtype)


def _logarithms(mask: Mask, group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Compute the logarithms of the blocks of a mask, and which rows are empty; None: no row.

    Rows of padding see everything: nobody reads them.
    """

    def make() -> tuple[Tensor, Tensor | None]:
        matrix = mask.diagonal_blocks(group.starts, group.sizes).to(dtype)
        bias = log_weights(matrix).masked_fill(~group.filled(matrix.device)[..., None], 0.0)
        empty = (bias == -torch.inf).all(-1, keepdim=True)
        return bias, empty if bool(empty.any()) else None

    return mask.kept(("logarithms", group, dtype), make)
