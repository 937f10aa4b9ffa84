"""Pieces of the fused kernels: loading tiles, feature maps, weights of a mask, matrix products.

Interpreted (`TRITON_INTERPRET=1`), Triton multiplies and compares bfloat16 as bit patterns, and
cuts numbers off where a GPU rounds. There numbers are made float32 first, and rounded by hand: a
tensor core does the same, for its products of bfloat16 are exact and its sums float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(start, rows, stride, valid, C: tl.constexpr, BLOCK: tl.constexpr):
    """Load a tile (rows, BLOCK) of which C channels are there; what is not valid is 0."""
    channels = tl.arange(0, BLOCK)
    there = valid[:, None] if C == BLOCK else valid[:, None] & (channels < C)[None, :]
    return tl.load(start + rows[:, None] * stride + channels[None, :], mask=there, other=0.0)


@triton.jit
def load_columns(start, rows, stride, valid, C: tl.constexpr, BLOCK: tl.constexpr):
    """Load the same tile transposed, (BLOCK, rows)."""
    channels = tl.arange(0, BLOCK)
    there = valid[None, :] if C == BLOCK else valid[None, :] & (channels < C)[:, None]
    return tl.load(start + rows[None, :] * stride + channels[:, None], mask=there, other=0.0)


@triton.jit
def store_rows(start, rows, stride, valid, tile, C: tl.constexpr, BLOCK: tl.constexpr):
    channels = tl.arange(0, BLOCK)
    there = valid[:, None] if C == BLOCK else valid[:, None] & (channels < C)[None, :]
    tile = rounded(tile, start.dtype.element_ty)
    tl.store(start + rows[:, None] * stride + channels[None, :], tile, mask=there)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Round float32 to the nearest number of a type, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        finite = (bits & -65536).to(tl.float32, bitcast=True)
        x = tl.where(x - x == 0, finite, x)
    return x.to(dtype)


# --- feature maps -------------------------------------------------------------------------------


@triton.jit
def row_features(x, valid, FEATURES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Map a tile (rows, BLOCK) to its features; what is not valid stays 0."""
    y = mapped(x, FEATURES)
    if FEATURES == "elu":  # the only map that does not keep zeros
        y = tl.where(valid[:, None] & (tl.arange(0, BLOCK) < C)[None, :], y, 0.0)
    return y


@triton.jit
def column_features(x, valid, FEATURES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Map a tile (BLOCK, rows) to its features."""
    y = mapped(x, FEATURES)
    if FEATURES == "elu":
        y = tl.where(valid[None, :] & (tl.arange(0, BLOCK) < C)[:, None], y, 0.0)
    return y


@triton.jit
def mapped(x, FEATURES: tl.constexpr):
    """Apply a feature map; squares in float16 would overflow, and stay in float32."""
    if FEATURES == "none":
        return x
    elif FEATURES == "relu":
        if INTERPRETED:
            return rounded(tl.where(x.to(tl.float32) < 0, 0.0, x.to(tl.float32)), x.dtype)
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL).to(x.dtype)
    elif FEATURES == "elu":
        y = x.to(tl.float32)
        return rounded(tl.where(y > 0, y + 1.0, tl.exp(y)), x.dtype)
    else:
        tl.static_assert(FEATURES == "square")
        y = x.to(tl.float32)
        return y * y if x.dtype == tl.float16 else rounded(y * y, x.dtype)


@triton.jit
def unmapped(x, gradient, FEATURES: tl.constexpr):
    """Turn the gradient of features into that of what they were made of, x."""
    y = x.to(tl.float32)
    if FEATURES == "relu":
        gradient = tl.where(y > 0, gradient, 0.0)
    elif FEATURES == "elu":
        gradient = tl.where(y > 0, gradient, gradient * tl.exp(y))
    elif FEATURES == "square":
        gradient = gradient * 2.0 * y
    return gradient


# --- weights of the mask ------------------------------------------------------------------------


@triton.jit
def weights_at(table, index, entries, SOFTMAX: tl.constexpr, BOUNDED: tl.constexpr):
    """Look weights up. If the mask is BOUNDED, what lies outside the table is not seen."""
    if BOUNDED:
        nothing = float("-inf") if SOFTMAX else 0.0
        return tl.load(table + index, mask=(index >= 0) & (index < entries), other=nothing)
    return tl.load(table + index)


# --- products -----------------------------------------------------------------------------------


@triton.jit
def multiply(a, b):
    """Multiply two tiles of inputs or features; float32 as TF32, where the matrix unit has it."""
    if INTERPRETED or a.dtype != b.dtype:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b)


@triton.jit
def accumulate(total, a, b, WIDE: tl.constexpr):
    """Add a b to a total: a is float32 and takes the type of b, unless it is too WIDE for it."""
    if WIDE or b.dtype == tl.float32:
        b = b.to(tl.float32)
    else:
        a = rounded(a, b.dtype)
        if INTERPRETED:
            a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def tile_gradients(
    products, slopes, weights, statistic, shift, scale, floor,
    SOFTMAX: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    """Return a tile of the attention, and the gradients of q k^T and of the mask.

    `products` are q k^T, `slopes` the gradient of the result times v^T. With D the sums of rows
    and y the result, a row's `statistic` and `shift` are 1 / D and -(g . y) / D; for softmax they
    are log2 D and -(g . y), and `weights` are logarithms. CLIP keeps attention to keys that are not
    there, which is multiplied by zeros, from overflowing: of others it is at most 1.
    """
    if SOFTMAX:
        exponents = (products * scale + weights) * LOG2E - statistic
        attention = tl.exp2(tl.minimum(exponents, 0.0) if CLIP else exponents)
        slopes = attention * (slopes + shift)
        return attention, slopes * scale, slopes
    else:
        slopes = slopes * statistic + shift
        return (products * weights + floor) * statistic, slopes * weights, slopes * products
