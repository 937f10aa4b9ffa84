"""Fused attention going back: gradients of q, of k and v, of the mask, of a table.

No program writes where another one does, so sums have a fixed order: there are no atomics. The
gradient of an L x L mask is summed over samples in registers, and then along the diagonals that
share an entry of the table. Shapes and names are those of `forward_kernels.py`; `shift` (T, S, L)
is what a row's gradient loses to its normalizer (`tile_gradients`).
"""

# Triton's language has types of its own.
# pyright: reportArgumentType=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    accumulate,
    column_features,
    load_columns,
    load_rows,
    multiply,
    row_features,
    store_rows,
    tile_gradients,
    unmapped,
    weights_at,
)


@triton.jit
def query_kernel(
    q, k, v, table, bias, place_q, place_k, out, statistic, grad, dq, shift,
    q_t, q_s, q_l, k_t, k_s, k_l, v_t, v_s, v_l, o_t, o_s, o_l, g_t, g_s, g_l, dq_t, dq_s, dq_l,
    bias_t, bias_s, table_t, place_s, samples, length, entries, origin, scale,
    M: tl.constexpr, D: tl.constexpr, MP: tl.constexpr, DP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SOFTMAX: tl.constexpr, FEATURES: tl.constexpr,
    BIAS: tl.constexpr, BOUNDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of q; `shift` is kept for the other kernels."""
    tiles = tl.cdiv(length, BM)
    item = (tl.program_id(0) // tiles).to(tl.int64)
    t, s = item // samples, item % samples
    i = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    row = i < length
    raw = load_rows(q + t * q_t + s * q_s, i, q_l, row, M, MP)
    queries = row_features(raw, row, FEATURES, M, MP)
    g = load_rows(grad + t * g_t + s * g_s, i, g_l, row, D, DP)
    y = load_rows(out + t * o_t + s * o_s, i, o_l, row, D, DP)
    over = tl.load(statistic + item * length + i, mask=row, other=float("inf") if SOFTMAX else 0.0)
    lost = -tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)
    if not SOFTMAX:
        lost *= over
    tl.store(shift + item * length + i, lost, mask=row)
    a = tl.load(place_q + s * place_s + i, mask=row, other=origin)
    k += t * k_t + s * k_s
    v += t * v_t + s * v_s
    table += t * table_t
    place_k += s * place_s
    found = tl.zeros([BM, MP], tl.float32)
    for first in range(0, length, BN):
        j = first + tl.arange(0, BN)
        column = j < length
        keys = load_rows(k, j, k_l, column, M, MP)
        keys = row_features(keys, column, FEATURES, M, MP)
        values = load_columns(v, j, v_l, column, D, DP)
        b = tl.load(place_k + j, mask=column, other=0)
        weights = weights_at(table, a[:, None] - b[None, :], entries, SOFTMAX, BOUNDED)
        if BIAS:
            weights += tl.load(bias + t * bias_t + s * bias_s + j, mask=column, other=0.0)[None, :]
        # the linear kernel has no use for the products: compiled, they are not computed
        products = multiply(queries, tl.trans(keys))
        slopes = multiply(g, values)
        _, gradient, _ = tile_gradients(
            products, slopes, weights, over[:, None], lost[:, None], scale, 0.0, SOFTMAX, True
        )
        found = accumulate(found, gradient, keys, WIDE)
    found = unmapped(raw, found, FEATURES)
    store_rows(dq + t * dq_t + s * dq_s, i, dq_l, row, found, M, MP)


@triton.jit
def key_kernel(
    q, k, v, table, bias, place_q, place_k, statistic, grad, shift, dk, dv, dbias,
    q_t, q_s, q_l, k_t, k_s, k_l, v_t, v_s, v_l, g_t, g_s, g_l, dk_t, dk_s, dk_l, dv_t, dv_s, dv_l,
    bias_t, bias_s, table_t, place_s, samples, length, entries, origin, scale, floor,
    M: tl.constexpr, D: tl.constexpr, MP: tl.constexpr, DP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SOFTMAX: tl.constexpr, FEATURES: tl.constexpr,
    BIAS: tl.constexpr, FLOOR: tl.constexpr, BOUNDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradients of k, v and the bias: BN keys and all queries. Tiles are keys by queries."""
    tiles = tl.cdiv(length, BN)
    item = (tl.program_id(0) // tiles).to(tl.int64)
    t, s = item // samples, item % samples
    j = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    column = j < length
    raw = load_rows(k + t * k_t + s * k_s, j, k_l, column, M, MP)
    keys = row_features(raw, column, FEATURES, M, MP)
    values = load_rows(v + t * v_t + s * v_s, j, v_l, column, D, DP)
    b = tl.load(place_k + s * place_s + j, mask=column, other=0)
    own = tl.zeros([BN], tl.float32)
    if BIAS:
        own = tl.load(bias + t * bias_t + s * bias_s + j, mask=column, other=0.0)
    q += t * q_t + s * q_s
    grad += t * g_t + s * g_s
    statistic += item * length
    shift += item * length
    table += t * table_t
    place_q += s * place_s
    found_k = tl.zeros([BN, MP], tl.float32)
    found_v = tl.zeros([BN, DP], tl.float32)
    found_bias = tl.zeros([BN], tl.float32)
    for first in range(0, length, BM):
        i = first + tl.arange(0, BM)
        row = i < length
        queries = load_rows(q, i, q_l, row, M, MP)
        queries = row_features(queries, row, FEATURES, M, MP)
        g = load_rows(grad, i, g_l, row, D, DP)
        over = tl.load(statistic + i, mask=row, other=float("inf") if SOFTMAX else 0.0)
        lost = tl.load(shift + i, mask=row, other=0.0)
        a = tl.load(place_q + i, mask=row, other=origin)
        weights = weights_at(table, a[None, :] - b[:, None], entries, SOFTMAX, BOUNDED)
        if BIAS:
            weights += own[:, None]
        products = multiply(keys, tl.trans(queries))
        slopes = multiply(values, tl.trans(g))
        attention, gradient, of_mask = tile_gradients(
            products, slopes, weights, over[None, :], lost[None, :], scale, floor, SOFTMAX, False
        )
        found_v = accumulate(found_v, attention, g, WIDE)
        found_k = accumulate(found_k, gradient, queries, WIDE)
        if BIAS:
            found_bias += tl.sum(of_mask, 1)
    found_k = unmapped(raw, found_k, FEATURES)
    store_rows(dk + t * dk_t + s * dk_s, j, dk_l, column, found_k, M, MP)
    store_rows(dv + t * dv_t + s * dv_s, j, dv_l, column, found_v, D, DP)
    if BIAS:
        tl.store(dbias + item * length + j, found_bias, mask=column)


@triton.jit
def mask_kernel(
    q, k, v, table, bias, place_q, place_k, statistic, grad, shift, dmask,
    q_t, q_s, q_l, k_t, k_s, k_l, v_t, v_s, v_l, g_t, g_s, g_l, bias_t, bias_s, table_t, place_s,
    samples, length, entries, origin, scale,
    first_table, tables, first_sample, last_sample, share, first_row, rows,
    M: tl.constexpr, D: tl.constexpr, MP: tl.constexpr, DP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SOFTMAX: tl.constexpr, FEATURES: tl.constexpr,
    BIAS: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """The gradient of some rows of the masks of some tables, each part over `share` samples.

    dmask is (parts, tables, rows, L).
    """
    blocks = tl.cdiv(length, BN)
    tiles = tl.cdiv(rows, BM) * blocks
    tile, item = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    part, t = (item // tables).to(tl.int32), first_table + item % tables
    own = tile // blocks * BM + tl.arange(0, BM)
    i = first_row + own
    j = tile % blocks * BN + tl.arange(0, BN)
    row, column = (i < length) & (own < rows), j < length
    q += t * q_t
    k += t * k_t
    v += t * v_t
    grad += t * g_t
    table += t * table_t
    found = tl.zeros([BM, BN], tl.float32)
    shared = tl.zeros([BM, BN], tl.float32)
    if SOFTMAX and not BOUNDED:
        a = tl.load(place_q + i, mask=row, other=origin)
        b = tl.load(place_k + j, mask=column, other=0)
        shared = weights_at(table, a[:, None] - b[None, :], entries, True, False)
    begin = first_sample + part * share
    for sample in range(begin, tl.minimum(begin + share, last_sample)):
        s = tl.cast(sample, tl.int64)
        line = (t * samples + s) * length + i
        queries = load_rows(q + s * q_s, i, q_l, row, M, MP)
        queries = row_features(queries, row, FEATURES, M, MP)
        keys = load_columns(k + s * k_s, j, k_l, column, M, MP)
        keys = column_features(keys, column, FEATURES, M, MP)
        g = load_rows(grad + s * g_s, i, g_l, row, D, DP)
        values = load_columns(v + s * v_s, j, v_l, column, D, DP)
        over = tl.load(statistic + line, mask=row, other=float("inf") if SOFTMAX else 0.0)
        lost = tl.load(shift + line, mask=row, other=0.0)
        weights = shared
        if BOUNDED:  # each sample has places of its own
            a = tl.load(place_q + s * place_s + i, mask=row, other=origin)
            b = tl.load(place_k + s * place_s + j, mask=column, other=0)
            index = a[:, None] - b[None, :]
            weights = weights_at(table, index, entries, SOFTMAX, True)
        if BIAS:
            own_bias = tl.load(bias + t * bias_t + s * bias_s + j, mask=column, other=0.0)
            weights = weights + own_bias[None, :]
        products = multiply(queries, keys)
        slopes = multiply(g, values)
        _, _, gradient = tile_gradients(
            products, slopes, weights, over[:, None], lost[:, None], scale, 0.0, SOFTMAX, False
        )
        if BOUNDED:
            gradient = tl.where((index >= 0) & (index < entries), gradient, 0.0)
        found += gradient
    dmask += (item * rows + own[:, None]) * length + j[None, :]
    tl.store(dmask, found, mask=row[:, None] & column[None, :])


@triton.jit
def table_kernel(
    dmask, dtable, table, place_q, token,
    table_t, place_s, token_s, tables, length, prefix, span, entries, parts,
    first_table, first_sample, first_row, rows,
    SOFTMAX: tl.constexpr, FIRST: tl.constexpr, BI: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Sums of a mask's gradient over all pairs with the same offset, in a fixed order.

    `token` says which token stands at the place of a key, or -1: (span,), for each part if places
    differ between samples. dtable is (T, entries); the first call writes it, later ones add to it.
    The gradient of a logarithm is divided by its weight.
    """
    entry = tl.program_id(0) % tl.cdiv(entries, BE) * BE + tl.arange(0, BE)
    own_table = (tl.program_id(0) // tl.cdiv(entries, BE)).to(tl.int64)
    found = tl.zeros([BI, BE], tl.float32)
    for part in range(parts):
        base = dmask + (part * tables + own_table) * rows * length
        sample = first_sample + part
        for start in range(0, rows, BI):
            own = start + tl.arange(0, BI)
            i = first_row + own
            row = (own < rows) & (i >= prefix) & (i < length)
            a = tl.load(place_q + sample * place_s + i, mask=row, other=-1)
            place = a[:, None] - entry[None, :]  # of the key
            there = row[:, None] & (place >= 0) & (place < span)
            j = tl.load(token + sample * token_s + place, mask=there, other=-1)
            index = own[:, None] * length + j
            found += tl.load(base + index, mask=there & (j >= 0), other=0.0)
    dtable += (first_table + own_table) * entries + entry
    sums = tl.sum(found, 0)
    if SOFTMAX:
        weights = table + (first_table + own_table) * table_t + entry
        weights = tl.load(weights, mask=entry < entries, other=0.0)
        sums = tl.where(weights == 0.0, 0.0, sums / tl.where(weights == 0.0, 1.0, weights))
    if not FIRST:
        sums += tl.load(dtable, mask=entry < entries, other=0.0)
    tl.store(dtable, sums, mask=entry < entries)
