"""One tile of the explicit path: some rows of the attention matrix, for some samples.

With the weights A = S * M of a tile, S = q k^T, their sums n = A 1, the result O = A v / n, and the
gradient G of O:

    G' = G / n,   dA = G' v^T - (G' . O) 1^T,   dM = dA * S,   dS = dA * M,
    dq = dS k,   dk = dS^T q,   dv = A^T G'

Products take operands of the tile's precision; their sums, the row sums n and G' . O have float32
or better. A matrix as large as the tile is what costs time on a GPU: each is written once, in the
tile's precision, and read as rarely as PyTorch allows.

Shapes: R rows, L keys, M features, D value channels; leading dims are batch and heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.features import FeatureMap

from ..reference import safe_denominator
from ..structure import divided

# Products of bfloat16 that return float32: of CUDA only, and not of every version.
_HAS_FULL_PRODUCT = hasattr(torch.ops.aten.bmm, "dtype") and torch.version.hip is None
# cuBLAS uses its fast kernels for rows that begin at multiples of this many bytes.
_ALIGNED = 16


@dataclass(frozen=True)
class TileOptions:
    """Options that all tiles of a call have in common.

    Attributes:
        features: the map that q and k still need; made again in the backward pass.
        dtype: the precision of operands of products.
        floor, dropout, nonnegative: as in the request.
        by_hand: whether the backward pass is the one above, and not autograd's.
        aligned: whether keys are padded so that rows of the tile begin at multiples of 16 bytes.
    """

    features: FeatureMap | None
    dtype: torch.dtype
    floor: float = 0.0
    dropout: float = 0.0
    nonnegative: bool = False
    by_hand: bool = False
    aligned: bool = False


def attend_tile(q: Tensor, k: Tensor, v: Tensor, slab: Tensor, options: TileOptions) -> Tensor:
    """Attend with the rows `slab` (..., R, L) of a mask: q (..., R, M), the result (..., R, D)."""
    if options.features is not None:
        q, k = options.features(q, k)
    dtype = options.dtype
    q, k, x = q.to(dtype), k.to(dtype), v.to(dtype)
    if options.by_hand:
        pad = -k.shape[-2] % (_ALIGNED // dtype.itemsize)
        if options.aligned and pad and not options.floor:  # which would weigh what is padded, too
            k, x = F.pad(k, (0, 0, 0, pad)), F.pad(x, (0, 0, 0, pad))
            slab = F.pad(slab, (0, pad))
        out = _Tile.apply(q, k, x.contiguous(), slab, options)
        assert isinstance(out, Tensor)
    else:
        out = by_autograd(q, k, x, slab, options)
    return out.to(v.dtype)


def by_autograd(q: Tensor, k: Tensor, v: Tensor, slab: Tensor, options: TileOptions) -> Tensor:
    """Attend by operations that can be differentiated as often as one likes."""
    v = F.pad(v, (0, 1), value=1.0)
    sums, absolute = tile_sums(q, k, v, slab, options.nonnegative, options.dropout)
    return divided(sums, absolute, v, options.floor)


def tile_sums(
    q: Tensor, k: Tensor, v: Tensor, slab: Tensor, nonnegative: bool, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`A v` and the absolute row sums of A, both in float32 or better.

    v ends in a column of ones: (..., R, D + 1) and (..., R, 1).
    """
    weights = (q @ k.mT) * slab
    low = v.dtype.itemsize < 4
    if low or dropout > 0:  # the normalizer, v's last column, counts every key, and in full
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        dropped = F.dropout(weights, dropout) if dropout > 0 else weights
        sums = torch.cat([dropped.to(v.dtype) @ v[..., :-1], weights.sum(-1, keepdim=True)], -1)
    else:
        sums = weights.to(v.dtype) @ v
    sums = sums if low else sums.to(v.dtype)
    if nonnegative:
        return sums, sums[..., -1:].detach().abs()
    return sums, torch.linalg.vector_norm(weights.detach().to(sums.dtype), 1, dim=-1, keepdim=True)


class _Tile(torch.autograd.Function):
    """`by_autograd` without dropout, with few matrices as large as the tile."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slab: Tensor, options: TileOptions
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q @ k.mT
        weights = _times(scores, slab)
        if options.floor:
            weights += options.floor
        total = weights.sum(-1, keepdim=True, dtype=wide)
        if options.nonnegative:
            absolute = total.abs()
        else:
            absolute = torch.linalg.vector_norm(weights, 1, dim=-1, keepdim=True, dtype=wide)
        denominator = safe_denominator(total, absolute)
        sums = _product_in_full(weights, v)
        ctx.save_for_backward(q, k, v, slab, scores, weights, sums, denominator)
        ctx.options = options
        return _over(sums, denominator, v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, slab, scores, weights, sums, denominator = ctx.saved_tensors
        (grad,), needed = grads, ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody differentiates again
            return *_again(grad, (q, k, v, slab), needed, ctx.options), None
        grad = _over(grad, denominator, v.dtype)
        values = weights.mT @ grad if needed[2] else None
        shift = -(grad * sums).sum(-1, keepdim=True) / denominator
        inner = _shifted_product(grad, v, shift)
        outer = _times(inner, slab)
        query = outer @ k if needed[0] else None
        key = outer.mT @ q if needed[1] else None
        del outer, weights
        rows = _summed_to(inner.mul_(scores), slab) if needed[3] else None
        return query, key, values, rows, None


def _shifted_product(x: Tensor, v: Tensor, shift: Tensor) -> Tensor:
    """`x v^T + shift`, rounded once: the shift of a row is two columns of x, each of its digits."""
    first = shift.to(x.dtype)
    second = (shift - first).to(x.dtype)
    columns = x.shape[-1] + 2
    columns += -columns % (_ALIGNED // x.itemsize)
    tail = v.new_zeros(columns - x.shape[-1])
    rest = tail[2:].expand(*x.shape[:-1], -1)
    x = torch.cat([x, first, second, rest], -1)
    tail[:2] = 1.0
    return x @ torch.cat([v, tail.expand(*v.shape[:-1], -1)], -1).mT


def _again(
    grad: Tensor, leaves: tuple[Tensor, ...], needed: tuple[bool, ...], options: TileOptions
) -> list[Tensor | None]:
    """Gradients with a history, in full precision."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    q, k, v, slab = leaves
    with torch.enable_grad():
        out = by_autograd(q.to(wide), k.to(wide), v.to(wide), slab, options).to(grad.dtype)
    wanted = [x for x, need in zip(leaves, needed, strict=False) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if need else None for need in needed[:4]]


def _times(x: Tensor, slab: Tensor) -> Tensor:
    """The product in x's dtype, rounded once: nothing as large is made in a wider one."""
    if torch.promote_types(x.dtype, slab.dtype) == x.dtype:
        return x * slab
    return torch.mul(x, slab, out=torch.empty_like(x))


def _over(x: Tensor, denominator: Tensor, dtype: torch.dtype) -> Tensor:
    """x divided by the sums of the rows, rounded once."""
    if torch.promote_types(x.dtype, denominator.dtype) == dtype:
        return x / denominator
    return torch.div(x, denominator, out=torch.empty(x.shape, dtype=dtype, device=x.device))


def _product_in_full(x: Tensor, y: Tensor) -> Tensor:
    """The product as it is summed, in float32 or better, where a device can return that."""
    if x.dtype.itemsize >= 4:
        return x @ y
    if x.device.type == "cuda" and _HAS_FULL_PRODUCT:
        lead = x.shape[:-2]
        flat = (z.reshape(prod(lead), *z.shape[-2:]) for z in (x, y))
        return torch.bmm(*flat, out_dtype=torch.float32).view(*lead, x.shape[-2], y.shape[-1])
    if x.device.type == "cpu":
        return x.float() @ y.float()
    return (x @ y).float()


def _summed_to(x: Tensor, slab: Tensor) -> Tensor:
    """The sum of x over the dims that `slab` does not have, in its dtype."""
    lead = x.ndim - slab.ndim
    dims = [i for i in range(x.ndim) if i < lead or slab.shape[i - lead] != x.shape[i]]
    if not dims:
        return x.to(slab.dtype)
    return x.sum(dims, keepdim=True, dtype=slab.dtype).reshape(slab.shape)
