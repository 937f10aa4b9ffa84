"""Rooted forests: parents, heavy paths, lowest common ancestors. Nothing recurses.

A tree is walked once in plain Python, O(L); all later questions are vectorized.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from vit_rpe.masks.helpers import row_starts

from ..edges import Graph, as_graph


class Forest:
    """A forest, each tree rooted at its node of smallest index.

    Every node has at most one heavy child, that of the largest subtree; chains of these are heavy
    paths. From any node to its root there are at most log2 L light edges, those between paths.
    Nodes are numbered in preorder, heavy children first, so that a path is a range of numbers.

    All fields have shape (L,): `parent` (-1 for a root), `tree` (the root's index), `depth` in
    edges, `size` of the subtree, `pre` (preorder number), `head` (first node of the heavy path),
    `level` (light edges above), `edge` and `back` (the edge from the node to its parent, and its
    counterpart; -1 for a root).
    """

    def __init__(self, edge_index: Tensor | Graph, *, num_nodes: int | None = None):
        # lengths of edges may be negative, and learned
        graph = as_graph(edge_index, num_nodes=num_nodes, nonnegative=False, learnable=True)
        edge_index, self.num_nodes = graph.edge_index, graph.num_nodes
        order = torch.argsort(edge_index[0], stable=True)
        starts = row_starts(edge_index[0][order], self.num_nodes).tolist()
        target = edge_index[1][order].tolist()
        self.order, parent, tree, edge = _root_trees(starts, target)
        size, heavy = _sizes(self.order, parent)
        pre, depth, head, level = _number(self.order, parent, size, heavy)
        fields = (parent, tree, depth, size, pre, head, level)
        device = edge_index.device
        self.parent, self.tree, self.depth, self.size, self.pre, self.head, self.level = (
            torch.tensor(field, device=device) for field in fields
        )
        self.edge, self.back = self._edges(edge_index, order, torch.tensor(edge, device=device))

    def _edges(self, edge_index: Tensor, order: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Find for each node the edges to and from its parent, as columns of edge_index."""
        back = torch.where(down >= 0, order[down], down) if len(order) else down
        child = (edge_index[1] != self.parent[edge_index[0]]).logical_not()
        up = torch.full_like(self.parent, -1)
        up[edge_index[0][child]] = child.nonzero().squeeze(-1)
        return up, back

    @cached_property
    def diameter(self) -> int:
        """The number of edges of the longest path. O(L)."""
        parent, depth = self.parent.tolist(), self.depth.tolist()
        height, longest = [0] * self.num_nodes, 0
        for v in reversed(self.order):
            p = parent[v]
            if p >= 0:
                longest = max(longest, height[p] + height[v] + 1)
                height[p] = max(height[p], height[v] + 1)
        assert longest <= 2 * max(depth)
        return longest

    def along_path(self) -> Tensor:
        """List the nodes of a forest that is a single path, from end to end: (L,).

        Its root has one or two branches, of which one comes first in preorder.
        """
        order = torch.argsort(self.pre)
        first = int((self.head == order[0]).sum())
        return torch.cat([order[first:].flip(0), order[:first]])

    def edge_lengths(self, edge_weight: Tensor) -> Tensor:
        """Look up the weight of the edge above each node, 0 for roots: (L,), float64."""
        weight = edge_weight.double()
        if not len(weight):
            return weight.new_zeros(self.num_nodes)
        both = (weight[self.edge.clamp(min=0)] + weight[self.back.clamp(min=0)]) / 2
        return both.masked_fill(self.parent < 0, 0.0)

    def common_ancestor(self, i: Tensor, j: Tensor) -> Tensor:
        """Find the lowest common ancestor of each pair, -1 for nodes of different trees.

        Up to 2 log2 L rounds: the one whose path begins deeper climbs to the path above.
        """
        i, j = torch.broadcast_tensors(i, j)
        apart = self.tree[i] != self.tree[j]
        j = torch.where(apart, i, j)
        while (differ := self.head[i] != self.head[j]).any():
            deeper = self.depth[self.head[i]] >= self.depth[self.head[j]]
            i, j = (
                torch.where(differ & deeper, self.parent[self.head[i]], i),
                torch.where(differ & ~deeper, self.parent[self.head[j]], j),
            )
        above = torch.where(self.depth[i] <= self.depth[j], i, j)
        return above.masked_fill(apart, -1)

    def hops(self, i: Tensor, j: Tensor) -> Tensor:
        """Count the edges between the nodes of each pair, -1 between trees."""
        above = self.common_ancestor(i, j)
        hops = self.depth[i] + self.depth[j] - 2 * self.depth[above]
        return hops.masked_fill(above < 0, -1)

    def descendants(self) -> Tensor:
        """Tell whether node j lies in the subtree of node i, (L, L), from the parents only."""
        below = torch.eye(self.num_nodes, dtype=torch.bool, device=self.parent.device)
        parent = self.parent.tolist()
        for v in reversed(self.order):
            if parent[v] >= 0:
                below[parent[v]] |= below[v]
        return below

    def distances(self, lengths: Tensor) -> Tensor:
        """Compute all distances (L, L) by definition: an edge counts if it separates the nodes.

        `lengths` (L,) are those of the edges above the nodes. Different trees are at infinity.
        """
        below = self.descendants().to(lengths.dtype)
        to_root = lengths @ below
        shared = (below * lengths[:, None]).mT @ below
        distance = to_root[:, None] + to_root[None, :] - 2 * shared
        return distance.masked_fill(self.tree[:, None] != self.tree[None, :], torch.inf)


def _root_trees(
    starts: list[int], target: list[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return breadth-first order, parents, roots, and the index in `target` of each node's edge."""
    n = len(starts) - 1
    parent, tree, edge = [-1] * n, [-1] * n, [-1] * n
    order: list[int] = []
    for root in range(n):
        if tree[root] >= 0:
            continue
        tree[root] = root
        queue = [root]
        for u in queue:  # grows while it is read
            above = parent[u]
            met_above = False
            for position in range(starts[u], starts[u + 1]):
                v = target[position]
                if v == above and not met_above:
                    met_above = True
                elif tree[v] >= 0:
                    raise ValueError(_cycle(parent, u, v))
                else:
                    parent[v], tree[v], edge[v] = u, root, position
                    queue.append(v)
        order += queue
    return order, parent, tree, edge


def _cycle(parent: list[int], u: int, v: int) -> str:
    """Describe the cycle that the edge (u, v) closes, for an error message."""
    if u == v:
        return f"edge_index must be a forest, got a self-loop at node {u}"
    if parent[u] == v or parent[v] == u:
        return f"edge_index must be a forest, got edge ({u}, {v}) more than once"
    ups: dict[int, int] = {}
    w = u
    while w >= 0:
        ups[w] = parent[w]
        w = parent[w]
    down = [v]
    while down[-1] not in ups:
        down.append(parent[down[-1]])
    up = [u]
    while up[-1] != down[-1]:
        up.append(ups[up[-1]])
    nodes = [*up, *reversed(down[:-1]), u]
    shown = nodes if len(nodes) <= 12 else [*nodes[:6], "...", *nodes[-5:]]
    return "edge_index must be a forest, got the cycle " + " - ".join(map(str, shown))


def _sizes(order: list[int], parent: list[int]) -> tuple[list[int], list[int]]:
    """Compute the size of each subtree, and the heavy child of each node (-1 for a leaf)."""
    size, heavy, best = [1] * len(order), [-1] * len(order), [0] * len(order)
    for v in reversed(order):
        p = parent[v]
        if p >= 0:
            size[p] += size[v]
            if size[v] > best[p]:
                best[p], heavy[p] = size[v], v
    return size, heavy


def _number(
    order: list[int], parent: list[int], size: list[int], heavy: list[int]
) -> tuple[list[int], ...]:
    """Compute preorder numbers (heavy first), depths, heads of heavy paths, light edges above."""
    n = len(order)
    pre, depth, head, level, free = [0] * n, [0] * n, list(range(n)), [0] * n, [0] * n
    first = 0
    for v in order:
        p = parent[v]
        if p < 0:
            pre[v], first = first, first + size[v]
        else:
            depth[v], level[v] = depth[p] + 1, level[p]
            if heavy[p] == v:
                head[v], pre[v] = head[p], pre[p] + 1
            else:
                level[v] += 1
                pre[v] = free[p]
                free[p] += size[v]
        free[v] = pre[v] + 1 + (size[heavy[v]] if heavy[v] >= 0 else 0)
    return pre, depth, head, level
