"""Any function of the distance on unweighted trees, by balanced separators (paper, Lemma 6.1).

A tree is split at a centroid c into two parts that share only c, each of at most about two
thirds of the nodes. Between the parts, dist(i, j) = dist(i, c) + dist(c, j): sums over one part by
distance from c, times a Hankel matrix f(p + q), are what the other part takes. c is left out of
both sums; with each part it is joined when that is split in turn. Small parts are dense blocks.

Shapes: L nodes, C columns; values are (..., D), columns (..., L, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks.helpers import SparseMatrix, fast_size, row_starts

from .forest import Forest

_LEAF = 64  # parts of at most this many nodes are dense blocks
_DIRECT = 384  # Hankel matrices up to this side are formed, larger ones go through FFTs
COLUMNS = 16  # processed at a time, so that they stay in a CPU's cache


@dataclass
class Blocks:
    """Small parts of about one size: distances (k, b, b), -1 where there is no pair."""

    hops: Tensor
    nodes: SparseMatrix  # (k b, L)

    def table(self, values: Tensor) -> Tensor:
        return F.pad(values, (0, 1))[..., self.hops]  # the last entry, 0, is for no pair

    def add(self, x: Tensor, table: Tensor) -> Tensor:
        inside = table @ (self.nodes @ x).unflatten(-2, self.hops.shape[:2])
        return self.nodes.mT @ inside.flatten(-3, -2)


@dataclass
class Round:
    """Splits of one round: sums by (split, side, distance), and how many splits of which depth."""

    bins: SparseMatrix  # (bins, L): which bin a node is counted in
    across: SparseMatrix  # (bins, L): the bin of the other side at the same distance
    depths: list[tuple[int, int]]  # (distances on a side, splits)

    def table(self, values: Tensor) -> list[Tensor]:
        return [hankel_table(values, n) for n, _ in self.depths]

    def add(self, x: Tensor, table: list[Tensor]) -> Tensor:
        sums = (self.bins @ x).split([2 * n * k for n, k in self.depths], -2)
        parts = [
            hankel(part.unflatten(-2, (k, 2, n)), own).flatten(-4, -2)
            for (n, k), part, own in zip(self.depths, sums, table, strict=True)
        ]
        return self.across.mT @ (parts[0] if len(parts) == 1 else torch.cat(parts, -2))


def hankel_table(values: Tensor, n: int) -> Tensor:
    """Arrange values[p + q + 2], p, q < n, as a matrix (..., n, n), or its spectrum (..., size)."""
    table = F.pad(values[..., 2 : 2 * n + 1], (0, max(0, 2 * n + 1 - values.shape[-1])))
    if n <= _DIRECT:
        return table.unfold(-1, n, 1).contiguous()
    return torch.fft.rfft(table, n=fast_size(2 * n - 1))


def hankel(sums: Tensor, table: Tensor) -> Tensor:
    """Compute y[p] = sum_q values[p + q + 2] sums[q] for sums (..., k, 2, n, C)."""
    n = sums.shape[-2]
    if n <= _DIRECT:
        return table[..., None, None, :, :] @ sums
    size = fast_size(2 * n - 1)
    spectrum = table[..., None, None, None, :] * torch.fft.rfft(sums.mT, n=size).conj()
    return torch.fft.irfft(spectrum, n=size)[..., :n].mT


class Separators:
    """The splits of a forest, round by round, and the dense blocks that are left."""

    def __init__(self, forest: Forest):
        self.forest = forest
        self.blocks: list[Blocks] = []
        self.rounds: list[Round] = []
        node = torch.argsort(forest.pre)
        part = torch.unique_consecutive(forest.tree[node], return_inverse=True)[1]
        small: list[tuple[Tensor, Tensor]] = []
        while len(node):
            count = torch.bincount(part)
            large = count[part] > _LEAF
            # a part of one node has no pairs
            leaf = ~large & (count[part] > 1)
            small.append((node[leaf], part[leaf]))
            node, part = node[large], _renumbered(part[large])
            if len(node):
                node, part = self._split(node, part)
        self._add_blocks(small)

    def sums(self, x: Tensor, values: Tensor) -> Tensor:
        """Compute sum_j values[dist(i, j)] x_j: (..., L, C) -> (..., L, C). O(L log^2 L)."""
        steps = [*self.blocks, *self.rounds]
        tables = [step.table(values) for step in steps]
        results = []
        for columns in x.split(COLUMNS, -1):
            result = values[..., :1, None] * columns
            for step, table in zip(steps, tables, strict=True):
                result = result + step.add(columns, table)
            results.append(result)
        return torch.cat(results, -1)

    def _split(self, node: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        """Split every part in two; return the nodes and parts of the next round.

        Nodes are sorted by part and, within a part, in preorder.
        """
        center = node[self._centroids(node, part)][part]
        side = self._sides(node, part, center)
        hops = self.forest.hops(center, node)
        self.rounds.append(_round(node, part, side, hops, self.forest.num_nodes))
        is_center = node == center
        node = torch.cat([node, node[is_center]])
        part = torch.cat([2 * part + side, 2 * part[is_center] + 1])
        order = torch.argsort(part * self.forest.num_nodes + self.forest.pre[node])
        return node[order], _renumbered(part[order])

    def _centroids(self, node: Tensor, part: Tensor) -> Tensor:
        """Find each part's centroid, as an index: the smallest subtree of half the part or more."""
        n, pre = self.forest.num_nodes, self.forest.pre[node]
        key = part * n + pre
        inside = torch.searchsorted(key, key + self.forest.size[node]) - torch.arange(
            len(node), device=node.device
        )
        # a subtree's range of preorder numbers may reach into the next part's keys, never past n
        total = torch.bincount(part)[part]
        inside = inside.masked_fill(2 * inside < total, n + 1)
        order = torch.argsort(part * (n + 2) + inside)
        return order[row_starts(part, int(part[-1]) + 1)[:-1]]

    def _sides(self, node: Tensor, part: Tensor, center: Tensor) -> Tensor:
        """Deal out the branches at the centroid by size: side 0 or 1 for every node."""
        branch, owner = self._branches(node, part, center)
        away = (node != center).nonzero().squeeze(-1)
        size = torch.bincount(branch[away], minlength=len(owner))
        total = torch.bincount(part) - 1
        order = torch.argsort(size, descending=True, stable=True)
        order = order[torch.argsort(owner[order], stable=True)]
        before = size[order].cumsum(0) - size[order]
        first = row_starts(owner[order], len(total))[:-1]
        before = before - before[first][owner[order]]
        second = torch.empty_like(order)
        # the largest until they are a third: what is left is then at most two thirds
        second[order] = (3 * before >= total[owner[order]]).long()
        return second[branch].masked_fill(node == center, 0)

    def _branches(self, node: Tensor, part: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
        """Find the branch at the centroid that each node is in, and the part of every branch."""
        forest, n = self.forest, self.forest.num_nodes
        key = part * n + forest.pre[node]
        top = (forest.parent[node] == center).nonzero().squeeze(-1)
        below = (forest.pre[node] > forest.pre[center]) & (
            forest.pre[node] < forest.pre[center] + forest.size[center]
        )
        parts = int(part[-1]) + 1
        under = torch.searchsorted(key[top], key, right=True) - 1
        branch = torch.where(below, under, len(top) + part)
        return branch, torch.cat([part[top], torch.arange(parts, device=part.device)])

    def _add_blocks(self, small: list[tuple[Tensor, Tensor]]) -> None:
        """Make dense blocks of the small parts, those of similar size together."""
        offset, nodes, parts = 0, [], []
        for node, part in small:
            if len(node):
                nodes.append(node)
                parts.append(_renumbered(part) + offset)
                offset = int(parts[-1][-1]) + 1
        if not nodes:
            return
        node, part = torch.cat(nodes), torch.cat(parts)
        count = torch.bincount(part)[part]
        size = 2
        while size <= _LEAF:
            chosen = (count <= size) & (count > size // 2)
            if chosen.any():
                self.blocks.append(
                    _blocks(self.forest, node[chosen], _renumbered(part[chosen]), size)
                )
            size *= 2


def _round(node: Tensor, part: Tensor, side: Tensor, hops: Tensor, num_nodes: int) -> Round:
    """Make the bins of one round; parts of about the same depth are adjacent."""
    parts = int(part[-1]) + 1
    deepest = torch.zeros(parts, dtype=torch.int64, device=part.device)
    deepest = deepest.scatter_reduce(0, part, hops, "amax")
    ladder = torch.tensor(_ladder(int(deepest.max())), device=part.device)
    depth = ladder[torch.searchsorted(ladder, deepest)]
    order = torch.argsort(depth, stable=True)
    begin = torch.empty_like(depth)
    begin[order] = (2 * depth[order]).cumsum(0) - 2 * depth[order]
    bins = begin[part] + hops - 1
    own, other = bins + side * depth[part], bins + (1 - side) * depth[part]
    away = (hops > 0).nonzero().squeeze(-1)
    shape = (int(2 * depth.sum()), num_nodes)
    sizes, counts = torch.unique(depth, return_counts=True)
    depths = list(zip(sizes.tolist(), counts.tolist(), strict=True))
    return Round(
        SparseMatrix(own[away], node[away], shape),
        SparseMatrix(other[away], node[away], shape),
        depths,
    )


def _blocks(forest: Forest, node: Tensor, part: Tensor, size: int) -> Blocks:
    """Compute the distances within small parts, whose nodes come in preorder: parents first."""
    n, starts = forest.num_nodes, row_starts(part, int(part[-1]) + 1)
    position = torch.arange(len(node), device=node.device) - starts[part]
    key, parent = part * n + forest.pre[node], forest.parent[node].clamp(min=0)
    above = torch.searchsorted(key, part * n + forest.pre[parent]) - starts[part]
    grid, up = (torch.full((len(starts) - 1, size), -1, device=node.device) for _ in range(2))
    grid[part, position], up[part, position] = node, above
    hops = torch.zeros(len(grid), size, size, dtype=torch.int64, device=node.device)
    every = torch.arange(len(grid), device=node.device)
    for t in range(1, size):  # a node is one step further from all before it than its parent is
        hops[:, t, :t] = hops[:, :t, t] = hops[every, up[:, t].clamp(0, t - 1), :t] + 1
    real = (grid[:, :, None] >= 0) & (grid[:, None, :] >= 0) & (hops > 0)
    nodes = SparseMatrix.selection(grid.flatten(), n)
    return Blocks(hops.masked_fill(~real, -1), nodes)


def _renumbered(part: Tensor) -> Tensor:
    """Renumber sorted parts without gaps."""
    return torch.unique_consecutive(part, return_inverse=True)[1]


def _ladder(largest: int) -> list[int]:
    """List the sizes 1, 2, 3, 4, 6, 8, 12, ...: few of them, none much too large."""
    sizes, step = [1], 1
    while sizes[-1] < largest:
        step *= 2
        sizes += [step, step * 3 // 2]
    return sizes
