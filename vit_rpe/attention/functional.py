"""Masked linear attention: one definition (reference.py), several exact paths.

Shapes: L tokens, M features, D value channels; leading dims are batch and heads and broadcast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.features.autocast import autocast_dtype, without_autocast
from vit_rpe.masks import BlockDiagonal, Bordered, Mask, Ones, Padding, Scaled, Sum
from vit_rpe.masks.base import finite_where_zero, zero_where_zero
from vit_rpe.masks.compose import stack_rows, total
from vit_rpe.masks.precision import has_float64

from . import explicit as _explicit
from . import product as _product
from . import scan as _scan
from .calibrate import device_costs
from .cost import DEFAULT_COSTS, Path, choose_path, clear_choice
from .explicit_grid import Settings, explicit_grid, fits
from .flex import flex_attention, flex_fits
from .recompute import recomputed
from .reference import safe_denominator

PATHS = ("auto", "explicit", "product", "scan")
PathName = Literal["auto", "explicit", "product", "scan"]


def masked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    features: FeatureMap | None = None,
    path: PathName = "auto",
    budget: int | None = None,
    nonnegative: bool = False,
    dropout: float = 0.0,
    floor: float = 0.0,
    wide_range: bool | None = None,
) -> Tensor:
    """Attention whose weights are kernel values times a mask, without the L x L matrix.

        out_i = sum_j M[i, j] (q_i . k_j) v_j  /  sum_j M[i, j] (q_i . k_j)

    q, k (..., L, M) are feature-mapped, v is (..., L, D); the result has v's dtype. Rows without
    any weight give zeros.

    Args:
        features: a map to apply to q and k first. The result is that of `q, k = features(q, k)`;
            where a path can, it does not keep them for the backward pass.
        path: `explicit`, `product`, `scan` (for Ones, Causal and Exponential masks, also inside
            Bordered, Scaled, Sum and BlockDiagonal), or `auto`, the cheapest of them by `cost.py`.
        budget: bytes that a path may use beyond its inputs and outputs, forward and backward.
        nonnegative: a promise that q, k and the mask have no negative entry. A row's absolute sum
            is then its sum, which saves some time; the result is the same.
        dropout: probability of dropping a weight; explicit path only.
        floor: added to every weight `M[i, j] (q_i . k_j)`, at no cost on any path; not to those of
            keys that `Scaled` or `Padding` hides, nor between the blocks of `BlockDiagonal`.
        wide_range: whether some keys may be smaller than others by more than float32 has digits. By
            default what the feature map says; of q and k that come mapped nothing is known, and the
            safe answer is yes. Masks that are multiplied by transforms then work in float64.
    """
    _check(q, k, v, mask, path, budget, dropout)
    if wide_range is None:
        wide_range = features is None or features.wide_range
    path = "explicit" if dropout > 0 else path
    call = _Call(path, budget, nonnegative, dropout, floor, wide_range)
    lead = torch.broadcast_shapes(mask.lead, *(x.shape[:-2] for x in (q, k, v)))
    q, k, v = (x.expand(*lead, *x.shape[-2:]) for x in (q, k, v))
    return call.attend(q, k, v, mask, features)


class _Call:
    """One call's settings, and the walk through the structure of a mask down to a path."""

    def __init__(
        self,
        path: PathName,
        budget: int | None,
        nonnegative: bool,
        dropout: float,
        floor: float,
        wide_range: bool,
    ):
        self.path: PathName = path
        self.wide_range = wide_range
        self.budget = budget
        self.nonnegative = nonnegative
        self.dropout = dropout
        self.floor = floor

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, features: FeatureMap | None = None
    ) -> Tensor:
        """The attention itself, (..., L, D) in v's dtype."""
        if isinstance(mask, BlockDiagonal):
            parts = zip(*(x.split(mask.lengths, -2) for x in (q, k, v)), mask.masks, strict=True)
            outs = [self.attend(a, b, c, part, features) for a, b, c, part in parts]
            with _full_precision(q):  # autocast would look for a common type, in vain
                return stack_rows(outs)
        compiled = self._compiled_path(q, k, v, mask, features)
        if compiled == "explicit":
            settings = Settings(self.nonnegative, features, self.floor)
            with _full_precision(q):
                return explicit_grid(q, k, v, mask, _common_dtype(q, k, v), settings)
        if compiled == "scan":  # fast enough to be done again, and it would keep a dozen tensors
            return recomputed(self._divided, q, k, v, mask, features)
        return self._divided(q, k, v, mask, features)

    def _divided(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, features: FeatureMap | None
    ) -> Tensor:
        """The sums over the keys, and their division."""
        keep = _kept_keys(mask)
        if features is not None:
            q, k = features(q, k, keep)
        if isinstance(mask, Scaled) and not self.floor:
            return self.attend(*_weighed(q, k, v, mask), mask.inner)
        if self.path in ("auto", "explicit") and not (self.floor or self.dropout or self.budget):
            if flex_fits(mask, self.nonnegative, q, k, v):
                return flex_attention(q, k, v.to(q.dtype), mask).to(v.dtype)
        dtype, common = v.dtype, _common_dtype(q, k, v)
        q, k, v = q.to(common), k.to(common), v.to(common)
        v = F.pad(v, (0, 1), value=1.0)  # one more column: the normaliser
        sums, absolute = self.sums(q, k, v, mask)
        if self.floor:  # a matrix of rank one: what it adds to all rows is one sum over the values
            seen = v if keep is None else v.masked_fill(~keep[..., None], 0.0)
            added = self.floor * seen.sum(-2, keepdim=True)
            sums, absolute = sums + added, absolute + added[..., -1:].abs()
        return (sums[..., :-1] / safe_denominator(sums[..., -1:], absolute)).to(dtype)

    def _compiled_path(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, features: FeatureMap | None
    ) -> Path | None:
        """The path, if it is one that is compiled for this mask and keeps its inputs alone."""
        if self.dropout:
            return None
        m = k.shape[-1] if features is None else features.num_features(k.shape[-1])
        inner = mask.inner if isinstance(mask, Bordered) else mask
        path, dtype = self._choice(q, m, v.shape[-1] + 1, inner), _common_dtype(q, k, v)
        if path == "scan" and fits(inner, q, dtype):
            return path
        # features with parameters would get no gradient
        learned = features is not None and any(p.requires_grad for p in features.parameters())
        if path != "explicit" or learned or autocast_dtype(q.device.type) == torch.bfloat16:
            return None
        return path if fits(mask, q, dtype, self.budget) else None

    def sums(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """`A v` and the absolute row sums of A (or a bound of them), for `A = M * (q k^T)`.

        (..., L, D + 1) and (..., L, 1): v has one more column, of ones.
        """
        if isinstance(mask, Padding):
            mask = Scaled(Ones(mask.length, mask.keep.device), right=mask.keep)
        if isinstance(mask, Scaled):
            q, k, v = _weighed(q, k, v, mask)
            common = _common_dtype(q, k, v)  # the weights may be of a higher precision
            return self.sums(q.to(common), k.to(common), v.to(common), mask.inner)
        if isinstance(mask, Bordered):
            return self._bordered(q, k, v, mask)
        if isinstance(mask, BlockDiagonal):
            parts = zip(*(x.split(mask.lengths, -2) for x in (q, k, v)), mask.masks, strict=True)
            sums, absolute = zip(*(self.sums(*part) for part in parts), strict=True)
            return stack_rows(sums), stack_rows(absolute)
        if isinstance(mask, Sum) and self.path == "scan":
            sums, absolute = zip(*(self.sums(q, k, v, part) for part in mask.masks), strict=True)
            return total(sums), total(absolute)
        return self._path(q, k, v, mask)

    def _bordered(self, q: Tensor, k: Tensor, v: Tensor, mask: Bordered) -> tuple[Tensor, Tensor]:
        """Prefix tokens are few: their rows and columns are thin products beside the inner mask."""
        p = mask.prefix
        if p == 0:
            return self.sums(q, k, v, mask.inner)
        (q0, q1), (k0, k1), (v0, v1) = ((x[..., :p, :], x[..., p:, :]) for x in (q, k, v))
        ones = q.new_ones(p)
        row = ones if mask.row is None else mask.row.to(q.dtype)
        column = ones if mask.column is None else mask.column.to(q.dtype)
        corner = q.new_ones(p, p) if mask.corner is None else mask.corner.to(q.dtype)

        inner, inner_absolute = self.sums(q1, k1, v1, mask.inner)
        with _full_precision(q):
            to_prefix = (q1 @ k0.mT) * column[..., None, :]
            in_corner = (q0 @ k0.mT) * corner
            top = in_corner @ v0 + row[..., None] * (q0 @ (k1.mT @ v1))
            bottom = inner + to_prefix @ v0
            with torch.no_grad():
                seen = q0.abs() @ k1.abs().sum(-2, keepdim=True).mT
                top_absolute = in_corner.abs().sum(-1, keepdim=True) + row.abs()[..., None] * seen
                bottom_absolute = inner_absolute + to_prefix.abs().sum(-1, keepdim=True)
        return stack_rows([top, bottom]), stack_rows([top_absolute, bottom_absolute])

    def _path(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        path = self._choice(q, k.shape[-1], v.shape[-1], mask)
        if path == "product" and not self._has_precision(mask, q.device):
            path = "explicit"
        if path == "explicit":
            budget = self.budget or _explicit.default_budget(q)
            with _full_precision(q, only_float16=True):
                return _explicit.explicit(q, k, v, mask, budget, self.nonnegative, self.dropout)
        with _full_precision(q):
            if path == "product":
                budget = self.budget or _product.default_budget(q)
                return _product.product(q, k, v, mask, budget, self.wide_range)
            return _scan.scan(q, k, v, mask, self.budget or _scan.DEFAULT_BUDGET, self.nonnegative)

    def _has_precision(self, mask: Mask, device: torch.device) -> bool:
        """Whether the device has the precision that products of the features need."""
        return has_float64(device) or not (self.wide_range and mask.normwise)

    def _choice(self, q: Tensor, m: int, d: int, mask: Mask) -> Path:
        if self.path != "auto":
            return self.path
        # an export's batch may be symbolic, and nothing may depend on it
        lead = q.shape[1:-2] if torch.compiler.is_exporting() else q.shape[:-2]
        return best_path(mask, prod(lead), m, d, q.device, self.wide_range)


def best_path(
    mask: Mask, lead: int, m: int, d: int, device: torch.device, wide_range: bool
) -> Path:
    """The path that `auto` takes for `lead` heads in all, m features and d columns of values.

    Where it is close, the constants of the device decide; nothing is measured in traced code.
    """
    path = clear_choice(mask, lead, m, d, wide_range, device.type)
    if path is None:
        costs = DEFAULT_COSTS if torch.compiler.is_compiling() else device_costs(device)
        path = choose_path(mask, lead, m, d, costs, wide_range, device.type)
    return path


def _weighed(q: Tensor, k: Tensor, v: Tensor, mask: Scaled) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of tokens move into q and k; a hidden key leaves no trace, not even NaN."""
    if mask.left is not None:
        q = zero_where_zero(mask.left[..., None], q)
    if mask.right is not None:
        k = zero_where_zero(mask.right[..., None], k)
        v = finite_where_zero(mask.right[..., None], v)
    return q, k, v


def _kept_keys(mask: Mask) -> Tensor | None:
    """Which keys a mask does not hide from all queries by a weight of 0, (..., L); None: all."""
    if isinstance(mask, Padding):
        return mask.keep
    if isinstance(mask, Scaled):
        inner = _kept_keys(mask.inner)
        own = None if mask.right is None else mask.right != 0
        return own if inner is None else inner if own is None else own & inner
    return None


def _common_dtype(*tensors: Tensor) -> torch.dtype:
    """float32 or wider."""
    return reduce(torch.promote_types, (x.dtype for x in tensors), torch.float32)


def _full_precision(q: Tensor, only_float16: bool = False) -> AbstractContextManager:
    """Autocast off: sums over many tokens overflow float16, and there is no FFT in bfloat16."""
    device = q.device.type
    if only_float16 and autocast_dtype(device) != torch.float16:
        return nullcontext()
    return without_autocast(device)


def _check(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, path: str, budget: int | None, dropout: float
) -> None:
    if path not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2 or x.shape[-2] != mask.length:
            raise ValueError(
                f"a mask of {mask.length} tokens needs {name} ending in ({mask.length}, channels), "
                f"got {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name} must be of a floating-point dtype, got {x.dtype}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] < 1:
        raise ValueError(
            f"q and k need as many features, and at least one, got {q.shape[-1]} and {k.shape[-1]}"
        )
    if budget is not None and budget < 1:
        raise ValueError(f"budget must be a positive number of bytes, got {budget}")
    if dropout > 0 and path not in ("auto", "explicit"):
        raise ValueError(f"dropout needs the explicit path, got path {path!r}")


torch.fx.wrap("masked_linear_attention")
