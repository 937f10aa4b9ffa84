"""The scan path in PyTorch: linear time for masks whose far field is a small state.

Inside a block of slices of the grid attention is explicit, or, if that would still be long, scanned
along the next axis. What a block takes from all earlier ones, and from all later ones, is one M x D
matrix per cell of a slice: it decays along the first axis from block to block, is spread along the
other axes once per block, and is read by every slice of the block.

Shapes: L tokens, M features, D value columns (the last one of ones); n slices of P cells; blocks of
b slices.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks import Exponential, Mask, Ones
from vit_rpe.masks.helpers import decay, shift_down, spread
from vit_rpe.precision import without_autocast

from .. import structure
from ..cost import PathCosts, best_blocks, default_budget, default_costs, scan_cost, sum_cost
from ..plan import AttentionPlan, AttentionRequest, ConcretePath, KernelName
from .explicit import explicit
from .product import absolute_bound
from .recompute import recomputed

# Tensors of the size of all states that are alive at once, at worst (in the backward pass).
_STATES_ALIVE = 8
# Up to this many blocks are carried by one matrix.
_FEW_BLOCKS = 128


class TorchScan:
    """Ones, Causal and Exponential masks, also as terms of a Sum."""

    kernel: ClassVar[KernelName] = "linear"
    path: ClassVar[ConcretePath] = "scan"
    name: ClassVar[str] = "torch"

    def supports(self, request: AttentionRequest) -> str | None:
        for mask in structure.scan_leaves(request.mask):
            if not isinstance(mask, Ones) and structure.scan_shape(mask) is None:
                return f"needs Ones, Causal or Exponential masks, got {type(mask).__name__}"
        return None

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        heads, m, d = request.num_heads, request.num_features, request.num_values + 1
        total = 0.0
        for mask in structure.scan_leaves(request.mask):
            shape = structure.scan_shape(mask)
            if shape is None:
                total += sum_cost(heads, mask.length, m, d, costs)
            else:
                total += scan_cost(heads, *shape, m, d, costs)
        return total

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        m, d = request.num_features, request.num_values + 1
        costs = default_costs(request.device.type)
        shapes = [structure.scan_shape(mask) for mask in structure.scan_leaves(request.mask)]
        return tuple(() if s is None else best_blocks(*s, m, d, costs) for s in shapes)

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            blocks = iter(plan.blocks)

            def leaf(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
                with without_autocast(q.device.type):
                    return scan(q, k, v, mask, next(blocks), plan.budget, request.nonnegative)

            def sums(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
                return structure.term_sums(q, k, v, mask, leaf)

            features, floor = request.features, request.floor
            return structure.attend(q, k, v, request.mask, sums, features=features, floor=floor)

        ones = all(isinstance(mask, Ones) for mask in structure.scan_leaves(request.mask))
        if ones and request.device.type != "cpu":  # cheaper to make again than to keep
            return recomputed(attend, q, k, v)
        return attend(q, k, v)


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    blocks: tuple[int, ...],
    budget: int,
    nonnegative: bool,
) -> tuple[Tensor, Tensor]:
    """`A v` and a bound of the absolute row sums of A, for `A = M * (q k^T)`."""
    if isinstance(mask, Ones):
        sums = q @ (k.mT @ v)
    else:
        mask = structure.as_exponential(mask, q)
        sums = _sweep(q, k, v, mask, blocks, budget)
    return sums, sums[..., -1:].detach().abs() if nonnegative else absolute_bound(q, k, mask)


def _sweep(
    q: Tensor, k: Tensor, v: Tensor, mask: Exponential, blocks: tuple[int, ...], budget: int
) -> Tensor:
    """`A v` in blocks of `blocks[0]` slices, each again in blocks along the next axis.

    v ends in a column of ones.
    """
    if not blocks:
        tracing = torch.compiler.is_compiling()
        tiles = default_budget("explicit", q.device.type, mask.length, q.dtype, tracing)
        return explicit(q, k, v, mask, min(budget, tiles), nonnegative=True)[0]
    b, cells = blocks[0], prod(mask.grid[1:])
    pad = (-mask.grid[0] % b) * cells  # with slices that nobody sees
    # (..., blocks, P, b, C): in a block the first axis comes last, so that the next one is first
    q, k, v = (
        F.pad(x, (0, 0, 0, pad)).unflatten(-2, (-1, b, cells)).transpose(-3, -2).contiguous()
        for x in (q, k, v)
    )
    q_in, k_in, v_in = (x.flatten(-3, -2) for x in (q, k, v))
    near = _sweep(q_in, k_in, v_in, _inside_a_block(mask, b), blocks[1:], budget)
    step = v.shape[-1]
    if not torch.compiler.is_exporting():  # the batch may be symbolic there
        states = prod(q.shape[:-2]) * 2 * k.shape[-1]
        step = min(max(1, budget // (states * q.element_size() * _STATES_ALIVE)), step)
    far = [
        recomputed(_from_other_blocks, q, k, v[..., i : i + step], mask)
        for i in range(0, v.shape[-1], step)
    ]
    total = near.unflatten(-2, (cells, b)) + (far[0] if len(far) == 1 else torch.cat(far, -1))
    return total.transpose(-3, -2).flatten(-4, -2)[..., : mask.length, :]


def _inside_a_block(mask: Exponential, b: int) -> Exponential:
    """The mask of b slices, their axis moved to the end; one more leading dim, for the blocks."""
    last = len(mask.grid) - 1
    return Exponential(
        mask.rates.roll(-1, -1)[..., None, :, :],
        mask.weights[..., None, :],
        (*mask.grid[1:], b),
        [axis - 1 if axis else last for axis in mask.one_sided],
    )


def _from_other_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Exponential) -> Tensor:
    """The sums of each query over the other blocks: (..., blocks, P, b, D)."""
    parts = [
        _from_one_term(q, k, v, mask.rates[..., i, :].to(q.dtype), mask.weights[..., i], mask)
        for i in range(mask.terms)
    ]
    return sum(parts[1:], parts[0])


def _from_one_term(
    q: Tensor, k: Tensor, v: Tensor, rates: Tensor, weight: Tensor, mask: Exponential
) -> Tensor:
    """A dim before the blocks, W ways: from earlier blocks, and from later ones."""
    b, rate = q.shape[-2], rates[..., 0]
    row = torch.arange(b, device=q.device, dtype=q.dtype)
    sent, read = torch.stack([b - 1 - row, row]), torch.stack([row + 1, b - row])  # distances
    if 0 in mask.one_sided:
        sent, read = sent[:1], read[:1]

    def weighed(x: Tensor, distance: Tensor) -> Tensor:
        factor = (-rate[..., None, None] * distance).exp()
        return x.unsqueeze(-5) * factor[..., None, None, :, None]

    state = weighed(k, sent).mT @ v.unsqueeze(-5)  # (..., W, blocks, P, M, D)
    shape = state.shape[-2:]
    state = _carried(state.flatten(-3), b * rate).unflatten(-1, (q.shape[-3], -1))
    if len(mask.grid) > 1:
        others = [axis - 1 for axis in mask.one_sided if axis]
        state = spread(state, rates[..., None, None, 1:], mask.grid[1:], others)
    q = q * weight[..., None, None, None, None].to(q.dtype)
    return (weighed(q, read) @ state.unflatten(-1, shape)).sum(-5)


def _carried(state: Tensor, rate: Tensor) -> Tensor:
    """Sums over earlier and over later blocks, exp(-rate * blocks between): (..., W, blocks, C)."""
    ways, count = state.shape[-3:-1]
    if count > _FEW_BLOCKS:
        earlier = shift_down(decay(state[..., :1, :, :], rate[..., None], one_sided=True))
        later = shift_down(decay(state[..., 1:, :, :].flip(-2), rate[..., None], one_sided=True))
        return torch.cat([earlier, later.flip(-2)], -3)
    block = torch.arange(count, device=state.device)
    between = block[:, None] - block - 1
    between = torch.stack([between, between.mT])[:ways]
    kernel = (-rate[..., None, None, None] * between.clamp(min=0)).exp()
    return kernel.masked_fill(between < 0, 0.0) @ state
