"""Two integers per token make one index into a flat table: M[i, j] = table[a_i - b_j].

On a grid a cell's place is its index in a table of offsets, so the difference of two places is an
offset, for any number of axes. Prefix tokens get places whose differences land behind the table, in
the weights of a border: rows of prefix queries, columns of prefix keys, and the corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Indices of all tokens of a grid behind prefix tokens.

    Attributes:
        query, key: a and b of each token, (1, L) int32.
        token: which token stands at the place of a key, or -1: (1, origin + 1) int32.
        source: which weight of table and border each entry of the flat table is; None: there is no
            border, and the table is flat.
        origin: the index of offset zero.
        entries: the length of the flat table.
    """

    query: Tensor
    key: Tensor
    token: Tensor
    source: Tensor | None
    origin: int
    entries: int


def places(grid: tuple[int, ...], prefix: int, device: torch.device) -> Places:
    """Return the places of a grid, which are kept: they are made on the device, without a copy."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _make(grid, prefix, device)  # what is made in a graph's memory is not for others
    return _kept(grid, prefix, device)


@lru_cache(maxsize=256)
def _kept(grid: tuple[int, ...], prefix: int, device: torch.device) -> Places:
    with torch.inference_mode(False):
        made = _make(grid, prefix, device)
    if device.type == "cuda":  # once: whoever takes them may work on another stream
        torch.cuda.current_stream(device).synchronize()
    return made


def grid_places(grid: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Each cell's index in a flat table of offsets, (cells,), and that of offset zero."""
    place, origin = torch.zeros(1, dtype=torch.int64, device=device), 0
    for n in grid:
        place = (place[:, None] * (2 * n - 1) + torch.arange(n, device=device)).flatten()
        origin = origin * (2 * n - 1) + n - 1
    return place, origin


def prefix_places(origin: int, p: int) -> tuple[int, int, int, int]:
    """Where rows and columns begin, how far rows are apart, and the length of the flat table.

    Columns are origin + 1 apart and rows one more (on a tiny grid more than that), so that no two
    pairs of the corner share an entry.
    """
    offsets, span = 2 * origin + 1, origin + 1
    if p == 0:
        return offsets, offsets, 0, offsets
    step = span + 1 if p <= span else p * span
    rows = max(offsets, p * span)
    columns = rows + p * step
    return rows, columns, step, rows + columns + (p - 1) * (step + span) + 1


def flat_entries(grid: Sequence[int], prefix: int) -> int:
    """The length of the flat table of a grid behind prefix tokens."""
    return prefix_places(prod(2 * n - 1 for n in grid) // 2, prefix)[3]


def _make(grid: tuple[int, ...], p: int, device: torch.device) -> Places:
    place, origin = grid_places(grid, device)
    rows, columns, step, entries = prefix_places(origin, p)
    r = torch.arange(p, device=device)
    span = origin + 1
    query = torch.cat([rows + r * step + origin, place + origin])
    key = torch.cat([origin - columns - r * span, place])
    tokens = p + torch.arange(len(place), device=device)
    token = torch.full((span,), -1, device=device).scatter(0, place, tokens)
    source = _source(origin, p, device) if p else None
    query, key, token = (x.to(torch.int32)[None] for x in (query, key, token))
    return Places(query, key, token, source, origin, entries)


def _source(origin: int, p: int, device: torch.device) -> Tensor:
    """For each entry of the flat table, its place in table, rows, columns and corner, in a row."""
    rows, columns, step, entries = prefix_places(origin, p)
    offsets, span = 2 * origin + 1, origin + 1
    source = torch.zeros(entries, dtype=torch.int64, device=device)
    source[:offsets] = torch.arange(offsets, device=device)
    r, cell = torch.arange(p, device=device), torch.arange(span, device=device)
    source[(rows + r[:, None] * step + cell).flatten()] = (offsets + r).repeat_interleave(span)
    source[(columns + r[:, None] * span + cell).flatten()] = (offsets + p + r).repeat_interleave(
        span
    )
    corner = rows + columns + r[:, None] * step + r * span
    source[corner.flatten()] = offsets + 2 * p + torch.arange(p * p, device=device)
    return source


def flat_table(table: Tensor, border: Tensor, at: Places) -> Tensor:
    """The flat table (T, entries) of tables (T, N) and borders (T, 2 p + p p)."""
    if at.source is None:
        return table
    return torch.cat([table, border], 1).index_select(1, at.source)


def token_at(places_of_keys: Tensor, prefix: int, span: int) -> Tensor:
    """Which token stands at each of `span` places, or -1, for places (S, L) of each sample."""
    length = places_of_keys.shape[-1]
    tokens = torch.arange(prefix, length, device=places_of_keys.device)
    place = places_of_keys[:, prefix:].to(torch.int64)
    there = (place >= 0) & (place < span)
    # those that are hidden stand behind the last place
    place = torch.where(there, place, span)
    found = place.new_full((len(place), span + 1), -1)
    found.scatter_(1, place, tokens.expand_as(place))
    return found[:, :span].to(torch.int32).contiguous()


HIDDEN = 1 << 30
"""The place of a key that nobody sees, and, negative, of a query that sees nothing."""


def subset_places(grid: tuple[int, ...], prefix: int, cells: Tensor) -> tuple[Tensor, Tensor, int]:
    """Places (S, L) of queries and of keys for subsets of a grid behind prefix tokens; their span.

    `cells` (S, kept) says which cell each token is; -1 for a token that is not there.
    """
    at = places(grid, prefix, cells.device)
    hidden = F.pad(cells < 0, (prefix, 0))
    both = []
    for index, sign in ((at.query, -1), (at.key, 1)):
        head, own = index[:, :prefix].expand(len(cells), prefix), index[0, prefix:][cells.clamp(0)]
        both.append(torch.cat([head, own], 1).masked_fill(hidden, sign * HIDDEN))
    return both[0], both[1], at.origin + 1


def pack_places(grids: list[tuple[int, ...]], grid: tuple[int, ...]) -> tuple[Tensor, Tensor, int]:
    """Places (1, L) of images in a row that share the table of `grid` and do not see each other.

    Each image covers the first cells of the grid along every axis.
    """
    table = prod(2 * n - 1 for n in grid)
    origin = table // 2
    queries, keys = [], []
    for number, own in enumerate(grids):
        place = torch.zeros(1, dtype=torch.int64)
        for n, whole in zip(own, grid, strict=True):
            place = (place[:, None] * (2 * whole - 1) + torch.arange(n)).flatten()
        start = number * 2 * table  # places of two images differ by more than the table's length
        queries.append(place + start + origin)
        keys.append(place + start)
    span = (len(grids) - 1) * 2 * table + origin + 1
    query, key = (torch.cat(x).to(torch.int32)[None] for x in (queries, keys))
    return query, key, span
