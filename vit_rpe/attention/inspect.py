"""Rows, columns and largest entries of the attention matrix, which is never made as a whole.

Shapes: L tokens, M features; leading dims are batch and heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import stack_rows

from .functional import masked_linear_attention
from .plan import KernelName, PathName
from .reference import log_weights, safe_denominator, safe_softmax

_TILE = 1 << 24


def attention_rows(
    q: Tensor,
    k: Tensor,
    mask: Mask,
    index: int | Sequence[int] | Tensor,
    kernel: KernelName = "linear",
) -> Tensor:
    """Rows of the attention matrix, of the queries at `index`: (..., len(index), L), sums of 1.

    q and k are feature-mapped; with `kernel="softmax"` they are as `masked_softmax_attention` takes
    them.
    """
    tokens = _tokens(index, mask.length)
    slab = stack_rows([mask.rows(i, i + 1) for i in tokens]).to(q.device)
    if kernel == "softmax":
        logits = q[..., tokens, :] @ k.mT * q.shape[-1] ** -0.5
        return safe_softmax(logits + log_weights(slab))
    return _normalized(q[..., tokens, :], k, slab)


def attention_columns(
    q: Tensor, k: Tensor, mask: Mask, index: int | Sequence[int] | Tensor, path: PathName = "auto"
) -> Tensor:
    """Columns of the attention matrix, of the keys at `index`: (..., L, len(index)).

    They are attention itself, with one-hot values: column j of the matrix is what it makes of e_j.
    """
    tokens = _tokens(index, mask.length)
    one_hot = q.new_zeros(mask.length, len(tokens))
    one_hot[tokens, torch.arange(len(tokens))] = 1.0
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    return masked_linear_attention(q, k, one_hot.expand(*lead, *one_hot.shape), mask, path=path)


def attention_topk(q: Tensor, k: Tensor, mask: Mask, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of each query, and their keys: two (..., L, count)."""
    if not 0 < count <= mask.length:
        raise ValueError(f"count must lie between 1 and {mask.length}, got {count}")
    step = max(1, _TILE // (q.shape[:-2].numel() * mask.length))
    tops = []
    for start in range(0, mask.length, step):
        stop = min(start + step, mask.length)
        slab = mask.rows(start, stop).to(q.device)
        tops.append(_normalized(q[..., start:stop, :], k, slab).topk(count, -1))
    values, keys = zip(*tops, strict=True)
    return torch.cat(values, -2), torch.cat(keys, -2)


def _normalized(q: Tensor, k: Tensor, slab: Tensor) -> Tensor:
    weights = (q @ k.mT) * slab
    weights = weights.masked_fill(slab == 0, 0.0)
    return weights / safe_denominator(
        weights.sum(-1, keepdim=True), weights.abs().sum(-1, keepdim=True)
    )


def _tokens(index: int | Sequence[int] | Tensor, length: int) -> list[int]:
    tokens = (
        [int(i) for i in index]
        if isinstance(index, Sequence)
        else torch.as_tensor(index).reshape(-1).tolist()
    )
    if any(not -length <= i < length for i in tokens):
        raise ValueError(f"index must lie within {length} tokens, got {tokens}")
    return [i % length for i in tokens]
