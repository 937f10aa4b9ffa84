"""The common part of the fused forms: which calls they serve, and how masks become tables.

Shapes: T tables, S samples that share a table, L tokens, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from vit_rpe.masks import Bordered, Exponential, Mask, Toeplitz

from .. import structure
from ..cost import PathCosts, fused_cost
from ..plan import AttentionRequest
from ..tables import TableGroups, border_weights
from . import availability, operators  # noqa: F401 (which registers them)

# Wider heads do not fit into registers.
_MOST_CHANNELS = 128
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The gradient of the masks is made in pieces of at most this many bytes, and of at least a tile.
MASK_BUDGET = 64 << 20
_TILE_ROWS = 64


def refusal(request: AttentionRequest) -> str | None:
    """Say why the fused kernels cannot serve a request, whatever its kernel; None if they can."""
    if availability.is_off():
        return f"is turned off by {availability.TRITON_ENV}=0"
    reason = availability.no_device(request.device)
    if reason is not None:
        return reason
    inner = structure.split_border(structure.without_token_weights(request.mask))[1]
    if not isinstance(inner, Toeplitz | Exponential):
        return f"needs a Toeplitz or Exponential mask, got {type(inner).__name__}"
    if 0 in request.batch_shape:
        return "has nothing to compute"
    if request.dropout > 0:
        return "has no dropout of weights"
    if max(request.num_features, request.num_values) > _MOST_CHANNELS:
        return f"has heads of at most {_MOST_CHANNELS} features and channels"
    if request.tracing in ("export", "transform"):
        words = {"export": "cannot be exported", "transform": "has no torch.func transforms"}
        return words[request.tracing]
    least = _TILE_ROWS * request.mask.length * 4
    if request.budget is not None and request.grad and request.budget < least:
        return f"needs {least} bytes for gradients of the mask, more than the budget"
    return _no_precision(request)


def _no_precision(request: AttentionRequest) -> str | None:
    dtype = request.operands
    if dtype not in _DTYPES:
        return f"multiplies float32, bfloat16 or float16, not {dtype}"
    exact = dtype == torch.float32 and not request.tf32
    if exact and not availability.is_interpreted():
        return (
            "multiplies float32 as TF32 only, and torch.backends.cuda.matmul.allow_tf32 is not set"
        )
    return None


def no_kernel(request: AttentionRequest, features: str) -> str | None:
    """Say why the kernels for a request do not run on its device."""
    m, d, even = request.num_features, request.num_values, request.mask.length % 16 == 0
    return availability.no_kernel(
        request.kernel, request.device, request.operands, m, d, features, even
    )


def cost(request: AttentionRequest, costs: PathCosts) -> float:
    m, d = request.num_features, request.num_values
    return fused_cost(request.num_heads, request.leaf.length, m, d, costs)


def mask_budget(request: AttentionRequest) -> int:
    return MASK_BUDGET if request.budget is None else min(MASK_BUDGET, request.budget)


@dataclass(frozen=True)
class Tables:
    """A mask as the operators take it.

    Attributes:
        offsets: tables (T, N).
        border: row, column and corner of each, (T, 2 p + p p).
        grid, prefix: the cells of a table, and prefix tokens before them.
        groups: leading dims as T tables and S samples.
    """

    offsets: Tensor
    border: Tensor
    grid: tuple[int, ...]
    prefix: int
    groups: TableGroups

    @staticmethod
    def of(mask: Mask, batch_shape: torch.Size) -> Tables:
        found, inner = structure.split_border(mask)
        table = inner.toeplitz() if isinstance(inner, Exponential) else inner
        assert isinstance(table, Toeplitz)
        lead = _lead(mask, batch_shape)
        sides = table.offsets.shape[-len(table.grid) :]
        offsets = table.offsets.float().expand(*lead, *sides).reshape(prod(lead), -1)
        groups = TableGroups(batch_shape, lead)
        border = _border(found, lead, offsets)
        return Tables(offsets, border, table.grid, 0 if found is None else found.prefix, groups)


def _lead(mask: Mask, batch_shape: torch.Size) -> torch.Size:
    """The leading dims of the tables. Heads that share one are told apart: they need no copy."""
    lead = mask.batch_shape
    if prod(lead) == 1 and len(batch_shape) > 1:
        return batch_shape[-1:]
    return lead


def _border(border: Bordered | None, lead: torch.Size, like: Tensor) -> Tensor:
    if border is None or border.prefix == 0:
        return like.new_empty(prod(lead), 0)
    parts = (border.row, border.column, border.corner)
    return border_weights(parts, border.prefix, lead, like.device).float()
