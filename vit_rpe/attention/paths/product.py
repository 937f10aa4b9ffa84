"""The product path: Algorithm 1 of the paper, in chunks of columns.

O(M D T_M(L)) work, if a product with the mask costs T_M(L) a column.

The products of some masks, such as FFTs, have round-off that follows the largest keys, wherever
these are. A row whose own keys are small would be lost in it. Features of wide range are therefore
multiplied in float64, and a row that is in doubt even then is computed again, explicitly.
"""

from __future__ import annotations

from math import inf, prod
from typing import ClassVar

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.precision import has_float64, is_readable, without_autocast

from .. import structure
from ..cost import PathCosts, product_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from .explicit import explicit_rows, row_bytes
from .recompute import recomputed

# Numbers per token that a column of a grid takes at worst, with its padded transforms and what the
# backward pass of a chunk keeps of them.
_NUMBERS_PER_COLUMN = 28
# Of its bound, a row's sum below this may be round-off. In float32 little more than noise is told
# from weight, so that masks which decay within a few tokens of many pass; in float64 there is room
# for rows that are right to five digits.
_IN_DOUBT = {torch.float32: 1e-6, torch.float64: 1e-9}
# Rows that are computed again together, if the budget allows.
_FEW_ROWS = 64


class TorchProduct:
    """Any mask, by its fast product."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "product"
    name: ClassVar[str] = "torch"

    def supports(self, request: AttentionRequest) -> str | None:
        if request.tracing == "export":
            return "cannot be exported: complex numbers do not leave PyTorch"
        if _needs_float64(request) and not has_float64(request.device):
            device = request.device.type
            return f"needs float64 for features of wide range, which {device} does not have"
        return None

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        float64 = _needs_float64(request)
        if float64 and request.device.type != "cpu":  # slow there, and its rows cannot be looked at
            return inf
        mask, m, d = request.leaf, request.num_features, request.num_values + 1
        work = mask.cost(m * d)
        return product_cost(request.num_heads, mask.length, m, d, work, costs, float64)

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        return ()

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
            with without_autocast(q.device.type):  # there is no FFT in bfloat16
                return product(q, k, v, mask, plan.budget, request.wide_range)

        features, floor = request.features, request.floor
        return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)


def _needs_float64(request: AttentionRequest) -> bool:
    return request.wide_range and request.leaf.normwise


def budget_for(columns: int, q: Tensor) -> int:
    """The bytes that let `columns` columns be multiplied at once, for all heads of all samples."""
    return columns * max(1, prod(q.shape[:-1])) * q.element_size() * _NUMBERS_PER_COLUMN


def columns_within(budget: int, q: Tensor) -> int:
    """Columns that are multiplied at once, for all heads of all samples."""
    return max(1, budget // budget_for(1, q))


@torch.compiler.disable()  # complex numbers stay in eager mode anyway
def product(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, budget: int, wide_range: bool = True
) -> tuple[Tensor, Tensor]:
    """`A v` and a bound of the absolute row sums of A, for `A = M * (q k^T)`.

    M is used through its product only. A chunk of features x values is made again in the backward
    pass; a budget below what one column takes is exceeded by that column.
    """
    if wide_range and mask.normwise:
        mask, q = mask.precise(), q.double()
    dtype = torch.promote_types(mask.compute_dtype(q.dtype), v.dtype)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    prepared = mask.precomputed(dtype)
    sums, bound = _in_chunks(q, k, v, prepared, budget), absolute_bound(q, k, prepared)
    if mask.normwise and is_readable(q) and is_readable(k):
        rows = max(1, min(_FEW_ROWS, budget // row_bytes(q, mask)))
        return _settled(q, k, v, mask, sums, bound, rows)
    return sums, bound


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, mask: Mask, budget: int) -> Tensor:
    m, d = k.shape[-1], v.shape[-1]
    columns = columns_within(budget, q)
    features, values = max(1, columns // d), min(columns, d)
    total = None
    for i in range(0, m, features):
        f = slice(i, i + features)
        parts = [
            recomputed(algorithm_1, q[..., f], k[..., f], v[..., j : j + values], mask)
            for j in range(0, d, values)
        ]
        chunk = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        total = chunk if total is None else total + chunk
    assert total is not None
    return total


def algorithm_1(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """sum_j M[i, j] (q_i . k_j) v_j, by products with M only.

    The L x (M D) matrix is stored as suits the mask: row by row, or column by column.
    """
    if mask.prefers_row_major:
        kv = k[..., :, None] * v[..., None, :]  # 1. vec(phi(k_i) v_i^T): (..., L, M, D)
        kv = mask.matmul(kv.flatten(-2)).unflatten(-1, kv.shape[-2:])  # 2. FastMult_M
        return (q[..., None, :] @ kv).squeeze(-2)  # 3. read with phi(q_i)
    kv = k.mT[..., :, None, :] * v.mT[..., None, :, :]  # 1. vec(phi(k_i) v_i^T): (..., M, D, L)
    product = mask.matmul(kv.flatten(-3, -2).mT)  # 2. FastMult_M
    kv = product.mT.unflatten(-2, kv.shape[-3:-1])
    return (q.mT[..., :, None, :] * kv).sum(-3).mT  # 3. read with phi(q_i)


@torch.no_grad()
def absolute_bound(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    """sum_j |M[i, j]| |q_i| . |k_j|, (..., L, 1): the scale at which a row's sum is round-off."""
    return (q.abs() * mask.abs_bound().matmul(k.abs())).sum(-1, keepdim=True)


def _settled(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, sums: Tensor, bound: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """Replace the sums and bounds of rows in doubt by what explicit attention gives.

    That is made for `rows` rows at a time, where any of them is in doubt.
    """
    in_doubt = sums[..., -1:].detach().abs() < _IN_DOUBT[sums.dtype] * bound
    tokens = in_doubt.reshape(-1, mask.length).any(0)
    if not tokens.any():
        return sums, bound
    parts = list(zip(*(x.split(rows, -2) for x in (in_doubt, sums, bound)), strict=True))
    for i, (doubt, *known) in enumerate(parts):
        start = i * rows
        if tokens[start : start + rows].any():
            again = explicit_rows(q, k, v, mask, start, start + doubt.shape[-2])
            known = [torch.where(doubt, *pair) for pair in zip(again, known, strict=True)]
        parts[i] = doubt, *known
    _, sums, bound = (torch.cat(column, -2) for column in zip(*parts, strict=True))
    return sums, bound
