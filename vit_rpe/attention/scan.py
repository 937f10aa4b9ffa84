"""The scan path: linear time for masks whose far field is a small state.

Inside a block of grid rows attention is explicit. What a block takes from all earlier ones, and
from all later ones, is one M x D matrix per place of a row: it decays along the first axis from
block to block, is spread along the other axes once per block, and is read by every row of the
block.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Exponential, Mask, Ones
from vit_rpe.masks.exponential import before, decay, spread

from .cost import block_rows, scan_passes
from .explicit import default_budget, explicit
from .explicit_grid import Settings, explicit_grid, fits
from .product import absolute_bound
from .recompute import recomputed

DEFAULT_BUDGET = 256 << 20
_LIVE = 8


def scan(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, budget: int, nonnegative: bool
) -> tuple[Tensor, Tensor]:
    """`A v` and a bound of the absolute row sums of A, for `A = M * (q k^T)`."""
    dtype = torch.promote_types(q.dtype, v.dtype)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if isinstance(mask, Ones):
        sums = q @ (k.mT @ v)
    else:
        sums = _sweep(
            q, k, v, mask if isinstance(mask, Exponential) else _as_exponential(mask, q), budget
        )
    absolute = sums[..., -1:].detach().abs() if nonnegative else absolute_bound(q, k, mask)
    return sums, absolute


def _as_exponential(mask: Mask, like: Tensor) -> Exponential:
    """A causal mask is a one-sided exponential that does not decay."""
    return Exponential(like.new_zeros(1), like.new_ones(1), (mask.length,), one_sided=(0,))


def _sweep(q: Tensor, k: Tensor, v: Tensor, mask: Exponential, budget: int) -> Tensor:
    """The blocks: b rows of the first axis each, padded with empty rows to a whole number."""
    n, place = mask.grid[0], prod(mask.grid[1:])
    b = block_rows(mask.grid, scan_passes(mask), k.shape[-1], v.shape[-1])
    pad = (-n % b) * place
    q, k, v = (F.pad(x, (0, 0, 0, pad)).unflatten(-2, (-1, b * place)) for x in (q, k, v))
    inner = Exponential(
        mask.rates[..., None, :, :], mask.weights[..., None, :], (b, *mask.grid[1:]), mask.one_sided
    )
    if fits(inner, q, q.dtype):
        settings = Settings(nonnegative=True, divide=False)
        within = explicit_grid(q, k, v[..., :-1], inner, q.dtype, settings)
    else:
        within, _ = explicit(q, k, v, inner, min(budget, default_budget(q)), nonnegative=True)
    if b < n:
        states = max(1, prod(q.shape[:-2])) * place * k.shape[-1] * scan_passes(mask)
        step = v.shape[-1]
        if not torch.compiler.is_exporting():  # the batch may be symbolic there
            step = min(max(1, budget // (states * q.element_size() * _LIVE)), step)
        q, k, v = (x.unflatten(-2, (b, place)) for x in (q, k, v))
        parts = [
            recomputed(_from_other_blocks, q, k, v[..., i : i + step], mask)
            for i in range(0, v.shape[-1], step)
        ]
        within = within + torch.cat(parts, -1).flatten(-3, -2)
    return within.flatten(-3, -2)[..., : mask.length, :]


def _from_other_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Exponential) -> Tensor:
    """What each query takes from the other blocks. q, k (..., blocks, b, place, M), v (..., D)."""
    total = None
    for term in range(mask.terms):
        rates, weight = mask.rates[..., term, :].to(q.dtype), mask.weights[..., term].to(q.dtype)
        part = _from_earlier_blocks(q, k, v, rates, mask)
        if 0 not in mask.one_sided:
            q_back, k_back, v_back = (x.flip(-4, -3) for x in (q, k, v))
            part = part + _from_earlier_blocks(q_back, k_back, v_back, rates, mask).flip(-4, -3)
        part = weight[..., None, None, None, None] * part
        total = part if total is None else total + part
    assert total is not None
    return total


def _from_earlier_blocks(
    q: Tensor, k: Tensor, v: Tensor, rates: Tensor, mask: Exponential
) -> Tensor:
    b, place = q.shape[-3:-1]
    row = torch.arange(b, device=q.device)
    rate = rates[..., 0, None]
    to_end = (-rate * (b - 1 - row)).exp()[..., None, :, None, None]
    from_end = (-rate * (row + 1)).exp()[..., None, :, None, None]
    sent = torch.einsum("...ipm,...ipd->...pmd", k * to_end, v)
    shape = sent.shape[-3:]
    state = before(decay(sent.flatten(-3), b * rates[..., 0], one_sided=True))
    if place > 1:
        others = tuple(axis - 1 for axis in mask.one_sided if axis > 0)
        state = state.unflatten(-1, (place, -1))
        state = spread(state, rates[..., None, 1:], mask.grid[1:], others).flatten(-2)
    return torch.einsum("...ipm,...pmd->...ipd", q * from_end, state.unflatten(-1, shape))
