"""The structure of masks: weights of tokens, prefix tokens, blocks and sums around plain masks.

Everything that attention must know about what a mask is made of is asked here, and by the forms.

Shapes: L tokens, M features, D value channels; leading dims are batch and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Exponential,
    Mask,
    Ones,
    Padding,
    Scaled,
    Sum,
    Toeplitz,
)
from vit_rpe.masks.helpers import hide_nonfinite, masked_multiply, stack_rows, total
from vit_rpe.precision import without_autocast

from .reference import log_weights, safe_denominator

LeafSums = Callable[[Tensor, Tensor, Tensor, Mask], tuple[Tensor, Tensor]]
"""(q, k, v, mask) -> `A v` (..., L, D + 1) and absolute row sums of A, or a bound, (..., L, 1)."""


# --- what a mask is made of ---------------------------------------------------------------------


def split_border(mask: Mask) -> tuple[Bordered | None, Mask]:
    """The border of a mask, if it has one, and what is inside."""
    return (mask, mask.inner) if isinstance(mask, Bordered) else (None, mask)


def innermost(mask: Mask) -> Mask:
    """The mask inside weights of tokens and prefix tokens."""
    while isinstance(mask, Scaled | Bordered):
        mask = mask.inner
    return Ones(mask.length, mask.device) if isinstance(mask, Padding) else mask


def without_token_weights(mask: Mask) -> Mask:
    """The mask inside weights of tokens, with its prefix tokens."""
    while isinstance(mask, Scaled):
        mask = mask.inner
    return mask


def padding_weights(mask: Padding) -> Scaled:
    """Padding as a weight for each key."""
    return Scaled(Ones(mask.length, mask.keep.device), right=mask.keep)


def has_token_weights(mask: Mask) -> bool:
    """Whether the outermost part of a mask is one weight for each token."""
    return isinstance(mask, Scaled)


def has_weights_inside(mask: Mask) -> bool:
    """Whether weights of tokens stand anywhere in a mask."""
    return isinstance(mask, Scaled | Padding) or any(map(has_weights_inside, mask.parts()))


def blocks_of(mask: Mask) -> list[Mask] | None:
    """The masks of a `BlockDiagonal`, each with its own weights of tokens; None for other masks."""
    if isinstance(mask, BlockDiagonal):
        parts = [blocks_of(part) or [part] for part in mask.masks]
        return [part for several in parts for part in several]
    if not isinstance(mask, Scaled):
        return None
    inner = blocks_of(mask.inner)
    if inner is None:
        return None
    parts, start = [], 0
    for part in inner:
        stop = start + part.length
        parts.append(mask.around(part, slice(start, stop)))
        start = stop
    return parts


def scan_leaves(mask: Mask) -> list[Mask]:
    """The masks that a scan goes through one by one."""
    if isinstance(mask, Scaled | Bordered):
        return scan_leaves(mask.inner)
    if isinstance(mask, Sum | BlockDiagonal):
        return [leaf for part in mask.masks for leaf in scan_leaves(part)]
    return [Ones(mask.length, mask.device)] if isinstance(mask, Padding) else [mask]


def scan_shape(mask: Mask) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The grid of a mask with states, and the passes of a state along each axis; None: no states.

    A causal mask counts as the one-sided exponential that it is.
    """
    if isinstance(mask, Causal):
        return (mask.length,), (1,)
    if not isinstance(mask, Exponential):
        return None
    axes = range(len(mask.grid))
    return mask.grid, tuple(mask.terms * (1 if axis in mask.one_sided else 2) for axis in axes)


def as_exponential(mask: Mask, like: Tensor) -> Exponential:
    """A mask with states as an exponential: a causal one is one-sided and does not decay."""
    if isinstance(mask, Exponential):
        return mask
    assert isinstance(mask, Causal)
    return Exponential(like.new_zeros(1), like.new_ones(1), (mask.length,), one_sided=(0,))


def signature(mask: Mask) -> Hashable | None:
    """All that a plan may depend on in a mask; None if its cost depends on its values."""
    if isinstance(mask, Toeplitz):
        return Toeplitz, mask.grid, mask.batch_shape, mask.nonnegative
    if isinstance(mask, Exponential):
        return (
            Exponential,
            mask.grid,
            mask.batch_shape,
            mask.terms,
            mask.one_sided,
            mask.nonnegative,
        )
    if isinstance(mask, Ones | Causal | Padding):
        return type(mask), mask.length, mask.batch_shape
    if not isinstance(mask, Scaled | Bordered | Sum | BlockDiagonal):
        return None
    parts = tuple(signature(part) for part in mask.parts())
    prefix = mask.prefix if isinstance(mask, Bordered) else 0
    return (
        None if None in parts else (type(mask), prefix, mask.batch_shape, mask.nonnegative, parts)
    )


def is_ones(mask: Mask) -> bool:
    """Whether all entries are 1, by the structure of a mask."""
    if isinstance(mask, Bordered):
        return (
            mask.row is None and mask.column is None and mask.corner is None and is_ones(mask.inner)
        )
    return isinstance(mask, Ones)


def hides_keys_at_most(mask: Mask) -> bool:
    """Whether the outermost token weights, if there are any, only hide keys."""
    if isinstance(mask, Scaled):
        right = mask.right is None or mask.right.dtype == torch.bool
        return mask.left is None and right and hides_keys_at_most(mask.inner)
    return True


def kept_keys(mask: Mask) -> Tensor | None:
    """Which keys a mask does not hide from all queries by a weight of 0, (..., L); None: all."""
    if isinstance(mask, Padding):
        return mask.keep
    if isinstance(mask, Scaled):
        inner = kept_keys(mask.inner)
        own = None if mask.right is None else mask.right != 0
        return own if inner is None else inner if own is None else own & inner
    return None


def describe(mask: Mask) -> str:
    """Say what a mask is: `Toeplitz on a (14, 14) grid behind 1 prefix token`."""
    leaf = innermost(mask)
    grid = getattr(leaf, "grid", None)
    words = f"{type(leaf).__name__} " + (
        f"of {leaf.length} tokens" if grid is None else f"on a {grid} grid"
    )
    border, _ = split_border(without_token_weights(mask))
    if border is not None and border.prefix:
        words += f" behind {border.prefix} prefix token" + ("s" if border.prefix > 1 else "")
    return words + (" with token weights" if has_token_weights(mask) else "")


# --- from q, k, v to the sums of plain masks ----------------------------------------------------


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    leaf_sums: LeafSums,
    *,
    features: FeatureMap | None = None,
    floor: float = 0.0,
) -> Tensor:
    """Masked attention, (..., L, D) in v's dtype, by the sums that a form makes of plain masks."""
    keep, dtype = kept_keys(mask), v.dtype
    if features is not None:
        q, k = features(q, k, keep)
    common = common_dtype(q, k, v)
    q, k, v = q.to(common), k.to(common), v.to(common)
    v = F.pad(v, (0, 1), value=1.0)  # one more column: the normalizer
    sums, absolute = weighted_sums(q, k, v, mask, leaf_sums)
    seen = v if keep is None or not floor else v.masked_fill(~keep[..., None], 0.0)
    return divided(sums, absolute, seen, floor).to(dtype)


def divided(sums: Tensor, absolute: Tensor, v: Tensor, floor: float = 0.0) -> Tensor:
    """Divide sums by their last column, the normalizer, after `floor` was added to all weights.

    v are the values that a query sees, with their column of ones: a matrix of rank one adds one sum
    over them to all rows.
    """
    if floor:
        added = floor * v.to(sums.dtype).sum(-2, keepdim=True)
        sums, absolute = sums + added, absolute + added[..., -1:].abs()
    values, total = sums.split([sums.shape[-1] - 1, 1], -1)
    return values / safe_denominator(total, absolute)


def weighted_sums(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, leaf_sums: LeafSums
) -> tuple[Tensor, Tensor]:
    """`A v` and the absolute row sums of A (or a bound of them), for `A = M * (q k^T)`.

    (..., L, D + 1) and (..., L, 1): v has one more column, of ones.
    """
    if isinstance(mask, Padding):
        mask = padding_weights(mask)
    if isinstance(mask, Scaled):
        q, k, v = _with_token_weights(q, k, v, mask)
        common = common_dtype(q, k, v)  # the weights may be of a higher precision
        q, k, v = q.to(common), k.to(common), v.to(common)
        return weighted_sums(q, k, v, mask.inner, leaf_sums)
    if isinstance(mask, Bordered):
        return _bordered_sums(q, k, v, mask, leaf_sums)
    if isinstance(mask, BlockDiagonal):
        parts = zip(*(x.split(mask.lengths, -2) for x in (q, k, v)), mask.masks, strict=True)
        pairs = [weighted_sums(a, b, c, part, leaf_sums) for a, b, c, part in parts]
        sums, absolute = zip(*pairs, strict=True)
        return stack_rows(sums), stack_rows(absolute)
    return leaf_sums(q, k, v, mask)


def term_sums(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, leaf_sums: LeafSums
) -> tuple[Tensor, Tensor]:
    """`leaf_sums` of a mask that may be a `Sum`, whose terms are computed one by one."""
    if not isinstance(mask, Sum):
        return leaf_sums(q, k, v, mask)

    def term(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return term_sums(q, k, v, mask, leaf_sums)

    pairs = [weighted_sums(q, k, v, part, term) for part in mask.masks]
    sums, absolute = zip(*pairs, strict=True)
    return total(sums), total(absolute)


def absorb_token_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, features: FeatureMap | None
) -> tuple[Tensor, Tensor, Tensor, Mask, FeatureMap | None]:
    """Move weights of tokens from the mask into q, k and v, which are then feature-mapped.

    A mask without such weights stays as it is, and so do q and k: the map is still to be applied.
    """
    if not isinstance(mask, Scaled | Padding):
        return q, k, v, mask, features
    if features is not None:
        q, k = features(q, k, kept_keys(mask))
    while isinstance(mask, Scaled | Padding):
        if isinstance(mask, Padding):
            mask = padding_weights(mask)
        q, k, v = _with_token_weights(q, k, v, mask)
        mask = mask.inner
    return q, k, v, mask, None


@dataclass(frozen=True)
class SoftmaxInputs:
    """A softmax call after weights of tokens have been taken out of its mask.

    Attributes:
        q, k, v: without what is hidden, which may be NaN.
        mask: the mask inside the weights.
        bias: the logarithms of the weights of keys, (..., L); None: all are 1.
        sees: queries whose own weight is not 0, (..., L): for the others it cancels. None: all.
        left: weights of queries that want a gradient, which is 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    bias: Tensor | None
    sees: Tensor | None
    left: tuple[Tensor, ...]

    def finish(self, out: Tensor) -> Tensor:
        """The result, with zeros for queries that see nothing because of their own weight."""
        if self.sees is not None:
            out = out.masked_fill(~self.sees[..., None], 0.0)
        for weight in self.left:
            out = out + (0.0 * weight[..., None]).to(out.dtype)
        return out


def softmax_inputs(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> SoftmaxInputs:
    """Turn weights of keys into a bias of logits, and weights of queries into who sees at all."""
    bias: Tensor | None = None
    sees: Tensor | None = None
    left: list[Tensor] = []
    while True:
        if isinstance(mask, Padding):
            mask = padding_weights(mask)
        if isinstance(mask, Bordered) and mask.prefix == 0:
            mask = mask.inner
        elif isinstance(mask, Scaled):
            if mask.left is not None:
                own = mask.left != 0
                sees = own if sees is None else sees & own
                left += [mask.left] if mask.left.requires_grad else []
            if mask.right is not None:
                own = log_weights(mask.right)
                bias = own if bias is None else bias + own
            mask = mask.inner
        else:
            break
    if bias is not None:
        hidden = (bias == -torch.inf)[..., None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    if sees is not None:
        q = q.masked_fill(~sees[..., None], 0.0)
    return SoftmaxInputs(q, k, v, mask, bias, sees, tuple(left))


def _with_token_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Scaled
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k times the weights of their tokens; a hidden key leaves no trace, not even NaN."""
    if mask.left is not None:
        q = masked_multiply(mask.left[..., None], q)
    if mask.right is not None:
        k = masked_multiply(mask.right[..., None], k)
        v = hide_nonfinite(mask.right[..., None], v)
    return q, k, v


def _bordered_sums(
    q: Tensor, k: Tensor, v: Tensor, mask: Bordered, leaf_sums: LeafSums
) -> tuple[Tensor, Tensor]:
    """Rows and columns of the few prefix tokens are thin products next to the inner mask."""
    p = mask.prefix
    if p == 0:
        return weighted_sums(q, k, v, mask.inner, leaf_sums)
    (q0, q1), (k0, k1), (v0, v1) = (x.split([p, x.shape[-2] - p], -2) for x in (q, k, v))
    ones = q.new_ones(p)
    row = ones if mask.row is None else mask.row.to(q.dtype)
    column = ones if mask.column is None else mask.column.to(q.dtype)
    corner = q.new_ones(p, p) if mask.corner is None else mask.corner.to(q.dtype)

    inner, inner_absolute = weighted_sums(q1, k1, v1, mask.inner, leaf_sums)
    with without_autocast(q.device.type):
        to_prefix = (q1 @ k0.mT) * column[..., None, :]
        in_corner = (q0 @ k0.mT) * corner
        top = in_corner @ v0 + ((q0 @ k1.mT) * row[..., None]) @ v1
        bottom = inner + to_prefix @ v0
        with torch.no_grad():
            seen = q0.abs() @ k1.abs().sum(-2, keepdim=True).mT
            top_absolute = in_corner.abs().sum(-1, keepdim=True) + row.abs()[..., None] * seen
            bottom_absolute = inner_absolute + to_prefix.abs().sum(-1, keepdim=True)
    return stack_rows([top, bottom]), stack_rows([top_absolute, bottom_absolute])


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """The precision of sums over these tensors: float32 or wider."""
    return reduce(torch.promote_types, (x.dtype for x in tensors), torch.float32)
