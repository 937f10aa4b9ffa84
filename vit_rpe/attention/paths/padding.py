"""Parts of a sequence of tokens, grouped by size and padded: as rows of a few batches of matrices.

Shapes: L tokens, P places with padding, H heads, C channels; a group has B blocks of n places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# Neighboring parts are joined up to this many tokens: entries between them cost less than a block.
_LEAST = 32
# Entries of padding that are cheaper than another group, and padding relative to what is padded.
_FREE, _WASTE = 1 << 15, 0.5


@dataclass(frozen=True)
class Group:
    """Blocks that are padded to one size."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int
    """The group's first place."""

    @property
    def size(self) -> int:
        return max(self.sizes)

    @property
    def places(self) -> int:
        return len(self.starts) * self.size

    def filled(self, device: torch.device) -> Tensor:
        """Which places hold a token, (B, n)."""
        sizes = torch.tensor(self.sizes, device=device)
        return torch.arange(self.size, device=device) < sizes[:, None]

    def take(self, x: Tensor, which: slice) -> Tensor:
        """Select some blocks of the group, (P, H, C) -> (B, H, n, C)."""
        own = x[self.first : self.first + self.places]
        return own.unflatten(0, (-1, self.size))[which].transpose(1, 2)

    def slices(self, budget: int, entry_bytes: int) -> Iterator[slice]:
        """Cut the blocks so that the matrices of each piece fit a budget of bytes."""
        step = max(1, budget // (entry_bytes * self.size**2))
        return (slice(i, i + step) for i in range(0, len(self.starts), step))


class PaddedParts:
    """The groups of a list of parts, and where each token is placed."""

    def __init__(self, sizes: Sequence[int], device: torch.device):
        self.groups = _groups(_joined(sizes, _LEAST))
        length = sum(sizes)
        index = []
        for group in self.groups:
            tokens = torch.tensor(group.starts)[:, None] + torch.arange(group.size)
            filled = group.filled(torch.device("cpu"))
            index.append(tokens.masked_fill(~filled, length).flatten())
        token = torch.cat(index)  # of each place; L: none
        self.plain = token.equal(torch.arange(length))
        place = torch.empty(length + 1, dtype=torch.int64)
        place[token] = torch.arange(len(token))
        self.token, self.place = token.to(device), place[:-1].to(device)

    def spread(self, x: Tensor) -> Tensor:
        """Bring tokens (..., L, C) to their places, with zeros between: (P, H, C)."""
        x = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)
        return x if self.plain else _Moved.apply(x, self.token, self.place)

    def join(self, results: list[Tensor], lead: torch.Size) -> Tensor:
        """Bring the results of all places back to the tokens: (P, H, C) -> (..., L, C)."""
        x = results[0] if len(results) == 1 else torch.cat(results)
        if not self.plain:
            x = _Moved.apply(x, self.place, self.token)
        return x.transpose(0, 1).reshape(*lead, *x.shape[::2])


@lru_cache(maxsize=256)
def padded_parts(sizes: tuple[int, ...], device: torch.device) -> PaddedParts:
    """Group parts by size; the layouts of the last batches are kept."""
    return PaddedParts(sizes, device)


@lru_cache(maxsize=256)
def groups_of(sizes: tuple[int, ...]) -> tuple[Group, ...]:
    """Group parts by size, each of which is a block."""
    return tuple(_groups(_joined(sizes, least=0)))


def _joined(sizes: Sequence[int], least: int) -> list[tuple[int, int]]:
    """List the start and size of each block, where neighbors of few tokens are one block."""
    blocks: list[tuple[int, int]] = []
    start = 0
    for size in sizes:
        if blocks and blocks[-1][1] + size <= least:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + size)
        else:
            blocks.append((start, size))
        start += size
    return blocks


def _groups(blocks: list[tuple[int, int]]) -> list[Group]:
    """Group blocks, the largest first, while padding them costs little."""
    groups: list[list[tuple[int, int]]] = []
    largest = wasted = 0
    for block in sorted(blocks, key=lambda block: -block[1]):
        waste = largest**2 - block[1] ** 2
        if groups and (waste <= _WASTE * block[1] ** 2 or wasted + waste <= _FREE):
            groups[-1].append(block)
            wasted += waste
        else:
            groups.append([block])
            largest, wasted = block[1], 0
    found, first = [], 0
    for group in groups:
        starts, sizes = zip(*sorted(group), strict=True)
        found.append(Group(starts, sizes, first))
        first += found[-1].places
    return found


class _Moved(torch.autograd.Function):
    """Rows of x at `index`, zeros where that is beyond x; `inverse` leads back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        if len(index) > len(x):  # from tokens to places, of which some are empty
            x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        return _Moved.apply(grads[0], inverse, index), None, None
