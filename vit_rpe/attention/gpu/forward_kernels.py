"""Fused attention going forward: linear, and by softmax.

    linear     out_i = sum_j M[i, j] (q_i . k_j) v_j / D_i,      D_i the sum of the weights
    softmax    out_i = sum_j exp(s q_i . k_j + log M[i, j] + bias_j) v_j / D_i

with M[i, j] = table[t, a_i - b_j]: two integers per token, as a query and as a key (`places.py`).

T tables, S samples that share one, L tokens, M features, D channels of v; tensors are (T, S, L, C)
with any strides but the last. A program computes BM rows of one sample and table, over tiles of BN
keys. `statistic` (T, S, L) keeps 1 / D_i, for softmax log2 D_i, and nothing else.
"""

# Triton's language has types of its own.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    LOG2E,
    accumulate,
    column_features,
    load_columns,
    load_rows,
    multiply,
    row_features,
    store_rows,
    weights_at,
)

EPS = tl.constexpr(1.1920928955078125e-07)


@triton.jit
def linear_kernel(
    q, k, v, table, place_q, place_k, out, statistic,
    q_t, q_s, q_l, k_t, k_s, k_l, v_t, v_s, v_l, o_t, o_s, o_l, table_t, place_s,
    samples, length, entries, origin, floor,
    M: tl.constexpr, D: tl.constexpr, MP: tl.constexpr, DP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, FEATURES: tl.constexpr, NONNEGATIVE: tl.constexpr,
    FLOOR: tl.constexpr, BOUNDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, BM)
    item = (tl.program_id(0) // tiles).to(tl.int64)
    t, s = item // samples, item % samples
    i = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    row = i < length
    queries = load_rows(q + t * q_t + s * q_s, i, q_l, row, M, MP)
    queries = row_features(queries, row, FEATURES, M, MP)
    a = tl.load(place_q + s * place_s + i, mask=row, other=origin)
    k += t * k_t + s * k_s
    v += t * v_t + s * v_s
    table += t * table_t
    place_k += s * place_s
    sums = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    absolute = tl.zeros([BM], tl.float32)
    for first in range(0, length, BN):
        j = first + tl.arange(0, BN)
        column = j < length
        keys = load_columns(k, j, k_l, column, M, MP)
        keys = column_features(keys, column, FEATURES, M, MP)
        values = load_rows(v, j, v_l, column, D, DP)
        b = tl.load(place_k + j, mask=column, other=0)
        weights = weights_at(table, a[:, None] - b[None, :], entries, False, BOUNDED)
        weights *= multiply(queries, keys)
        if not NONNEGATIVE:
            absolute += tl.sum(tl.abs(weights), 1)
        if FLOOR:
            weights += tl.where(column, floor, 0.0)[None, :]
        total += tl.sum(weights, 1)
        sums = accumulate(sums, weights, values, WIDE)
    bound = tl.abs(total) if NONNEGATIVE else absolute + tl.abs(floor) * length
    # a row whose sums overflow is not empty: it becomes NaN
    empty = (tl.abs(total) <= EPS * bound) & (bound < float("inf"))
    over = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    sums = tl.where(empty[:, None], 0.0, sums * over[:, None])
    tl.store(statistic + item * length + i, over, mask=row)
    store_rows(out + t * o_t + s * o_s, i, o_l, row, sums, D, DP)


@triton.jit
def softmax_kernel(
    q, k, v, table, bias, place_q, place_k, out, statistic,
    q_t, q_s, q_l, k_t, k_s, k_l, v_t, v_s, v_l, o_t, o_s, o_l, bias_t, bias_s, table_t, place_s,
    samples, length, entries, origin, scale,
    M: tl.constexpr, D: tl.constexpr, MP: tl.constexpr, DP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """The table and the bias of keys are logarithms."""
    tiles = tl.cdiv(length, BM)
    item = (tl.program_id(0) // tiles).to(tl.int64)
    t, s = item // samples, item % samples
    i = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    row = i < length
    queries = load_rows(q + t * q_t + s * q_s, i, q_l, row, M, MP)
    a = tl.load(place_q + s * place_s + i, mask=row, other=origin)
    k += t * k_t + s * k_s
    v += t * v_t + s * v_s
    table += t * table_t
    place_k += s * place_s
    sums = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    largest = tl.full([BM], float("-inf"), tl.float32)
    for first in range(0, length, BN):
        j = first + tl.arange(0, BN)
        column = j < length
        keys = load_columns(k, j, k_l, column, M, MP)
        values = load_rows(v, j, v_l, column, D, DP)
        b = tl.load(place_k + j, mask=column, other=0)
        logits = weights_at(table, a[:, None] - b[None, :], entries, True, BOUNDED)
        if BIAS:
            logits += tl.load(bias + t * bias_t + s * bias_s + j, mask=column, other=0.0)[None, :]
        logits += multiply(queries, keys) * scale
        logits = tl.where(column[None, :], logits * LOG2E, float("-inf"))
        before, largest = largest, tl.maximum(largest, tl.max(logits, 1))
        pivot = tl.where(largest == float("-inf"), 0.0, largest)  # nothing has been seen yet
        weights = tl.exp2(logits - pivot[:, None])
        shrink = tl.exp2(before - pivot)
        total = total * shrink + tl.sum(weights, 1)
        sums = accumulate(sums * shrink[:, None], weights, values, False)
    empty = total == 0.0
    sums = tl.where(empty[:, None], 0.0, sums / tl.where(empty, 1.0, total)[:, None])
    # of an empty row the exponentials of the backward pass are 0, too
    logs = tl.where(empty, float("inf"), largest + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(statistic + item * length + i, logs, mask=row)
    store_rows(out + t * o_t + s * o_s, i, o_l, row, sums, D, DP)
