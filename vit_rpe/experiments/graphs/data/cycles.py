"""Random trees with one more edge: does it close a longest cycle? (paper, Sec. 5.1.2).

Shapes: S trees, N nodes of each.
"""

from __future__ import annotations

import numpy as np
import torch

from .graph_set import GraphSet, kept
from .motifs import as_graph_set
from .random_graphs import Ints

NODES = 50


def cycle_set(pairs: int, seed: int, nodes: int = NODES) -> GraphSet:
    """Return pairs of graphs on the same uniform random tree, with one more edge.

    It joins two nodes at the largest distance (y = 1), or two that are neither adjacent nor at the
    largest distance (y = 0). The feature of a node is its degree.
    """
    if nodes < 8:
        raise ValueError(f"trees need at least 8 nodes to have a choice of cycles, got {nodes}")
    return kept(f"cycles-{pairs}x{nodes}-seed{seed}", lambda: _draw(pairs, seed, nodes))


def _draw(pairs: int, seed: int, nodes: int) -> GraphSet:
    draw = np.random.default_rng([seed, nodes])
    child, parent = random_trees(draw, pairs, nodes)
    distance = tree_distances(child, parent)
    longest = distance.max((1, 2))
    while (few := np.flatnonzero(longest < 4)).size:  # a star: every new edge closes a triangle
        child[few], parent[few] = random_trees(draw, len(few), nodes)
        distance[few] = tree_distances(child[few], parent[few])
        longest = distance.max((1, 2))
    far = distance == longest[:, None, None]
    near = (distance > 1) & ~far
    ends = np.stack([_choose(draw, far), _choose(draw, near)], 1).reshape(2 * pairs, 2)
    graph = np.arange(2 * pairs).repeat(nodes)
    i = np.concatenate([child.repeat(2, 0), ends[:, :1]], 1).ravel()
    j = np.concatenate([parent.repeat(2, 0), ends[:, 1:]], 1).ravel()
    y = np.tile([1, 0], pairs)
    graphs = as_graph_set(graph, i, j, np.full(2 * pairs, nodes), y)
    degree = torch.zeros(len(graphs.x), 1)
    every = graphs.edge_index[1] + nodes * torch.arange(2 * pairs).repeat_interleave(
        graphs.edge_ptr.diff()
    )
    degree.index_add_(0, every, torch.ones(len(every), 1))
    return GraphSet(degree, graphs.edge_index, graphs.y, graphs.node_ptr, graphs.edge_ptr)


def random_trees(draw: np.random.Generator, trees: int, nodes: int) -> tuple[Ints, Ints]:
    """Draw labeled trees uniformly, by their Pruefer codes: edges (S, N - 1) as child, parent.

    In every tree a node is a child before it is nobody's parent any more: children come in an order
    in which leaves are taken off, and the last parent remains.
    """
    code = draw.integers(nodes, size=(trees, nodes - 2))
    row = np.arange(trees)
    open_slots = np.ones((trees, nodes), np.int64)
    np.add.at(open_slots, (row[:, None], code), 1)
    child, parent = np.empty((2, trees, nodes - 1), np.int64)
    for step in range(nodes - 2):
        leaf = (open_slots == 1).argmax(1)  # the first node that is a leaf by now
        child[:, step], parent[:, step] = leaf, code[:, step]
        open_slots[row, leaf] = 0
        open_slots[row, code[:, step]] -= 1
    left = open_slots == 1  # the two that remain
    child[:, -1] = left.argmax(1)
    parent[:, -1] = nodes - 1 - left[:, ::-1].argmax(1)
    return child, parent


def tree_distances(child: Ints, parent: Ints) -> Ints:
    """Return all distances in each tree, (S, N, N), from edges in the order of `random_trees`."""
    trees, edges = child.shape
    row = np.arange(trees)
    distance = np.zeros((trees, edges + 1, edges + 1), np.int64)
    known = np.zeros((trees, edges + 1), bool)
    known[row, parent[:, -1]] = True
    for step in reversed(range(edges)):  # a child hangs on a parent that is there already
        new = np.where(known, distance[row, parent[:, step]] + 1, 0)
        distance[row, child[:, step]] = new
        distance[row, :, child[:, step]] = new
        known[row, child[:, step]] = True
    return distance


def _choose(draw: np.random.Generator, allowed: np.ndarray) -> Ints:
    """Choose one pair of nodes in each graph, all that are allowed being as likely: (S, 2)."""
    nodes = allowed.shape[1]
    chance = np.where(allowed, draw.random(allowed.shape), -1.0)
    return np.stack(np.divmod(chance.reshape(len(allowed), -1).argmax(1), nodes), 1)
