"""Random graphs with a motif in them, or with a random graph of its size (paper, Sec. 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .graph_set import GraphSet, kept
from .random_graphs import (
    Ints,
    drop_isolated,
    edge_array,
    gnm,
    gnp,
    joins,
    top_degrees,
)

BASE_NODES = 100
JOIN = 0.004  # probability of an edge between a node of the base graph and one of the motif
DEGREES = 5  # of a node's neighbors, the largest: its features


@dataclass(frozen=True)
class Motif:
    """A small graph, and the edge probability of the base graphs around it, on 100 nodes."""

    nodes: int
    edges: tuple[tuple[int, int], ...]
    base: float


def _ring(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


def _path(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n - 1)]


def _two(edges: list[tuple[int, int]], n: int) -> list[tuple[int, int]]:
    """Two copies of a graph on n nodes, and an edge between the two of each node."""
    return [*edges, *((i + n, j + n) for i, j in edges), *((i, i + n) for i in range(n))]


def _grid(n: int) -> list[tuple[int, int]]:
    rows = [(n * r + i, n * r + j) for r in range(n) for i, j in _path(n)]
    return [*rows, *((n * i + c, n * j + c) for c in range(n) for i, j in _path(n))]


def _caves(cliques: int) -> list[tuple[int, int]]:
    """Triangles in a ring: an edge leads from each to the next."""
    inside = [(3 * c + i, 3 * c + j) for c in range(cliques) for i, j in ((0, 1), (1, 2), (0, 2))]
    return [*inside, *((3 * c + 2, 3 * ((c + 1) % cliques)) for c in range(cliques))]


MOTIFS = {
    "caveman": Motif(9, tuple(_caves(3)), 0.027),
    "cycle": Motif(10, tuple(_ring(10)), 0.018),
    "grid": Motif(9, tuple(_grid(3)), 0.0267),
    "ladder": Motif(10, tuple(_two(_path(5), 5)), 0.026),
    "circular ladder": Motif(10, tuple(_two(_ring(5), 5)), 0.03),
}


def motif_set(name: str, pairs: int, seed: int, nodes: int = BASE_NODES) -> GraphSet:
    """Return pairs of graphs that share a base: with the motif (y = 1), and without (y = 0).

    The base is an Erdos-Renyi graph without its isolated nodes; the other graph of a pair has in
    the motif's place a random one with as many nodes and edges. For other `nodes` than 100 the
    probabilities shrink, so that degrees and the number of edges to the motif stay as they are.
    The last nodes of a graph are those of the motif.
    """
    if name not in MOTIFS:
        raise ValueError(f"motif must be one of {', '.join(MOTIFS)}, got {name!r}")
    key = f"{name.replace(' ', '-')}-{pairs}x{nodes}-seed{seed}"
    return kept(key, lambda: _draw(MOTIFS[name], pairs, seed, nodes))


def _draw(motif: Motif, pairs: int, seed: int, nodes: int) -> GraphSet:
    draw = np.random.default_rng([seed, nodes, *(end for edge in motif.edges for end in edge)])
    share = BASE_NODES / nodes
    pair, i, j = gnp(draw, pairs, nodes, motif.base * share)
    left, i, j = drop_isolated(pair, i, j, pairs, nodes)
    small = _motifs(motif, pairs, draw)
    parts = []
    for y in (1, 0):  # graphs 0 to S - 1 with the motif, then S to 2 S - 1 without
        graph, a, b = small[y]
        joined, u, v = joins(draw, left, motif.nodes, JOIN * share)
        shift = y == 0
        parts += [
            (pair + shift * pairs, i, j),
            (graph + shift * pairs, a + left[graph], b + left[graph]),
            (joined + shift * pairs, u, v + left[joined]),
        ]
    graph, i, j = (np.concatenate(part) for part in zip(*parts, strict=True))
    sizes = np.tile(left + motif.nodes, 2)
    y = np.arange(2 * pairs) < pairs
    interleaved = np.arange(2 * pairs).reshape(2, pairs).T.ravel()  # the two of a pair together
    return as_graph_set(graph, i, j, sizes, y.astype(np.int64)).select(
        torch.from_numpy(interleaved)
    )


def _motifs(
    motif: Motif, pairs: int, draw: np.random.Generator
) -> dict[int, tuple[Ints, Ints, Ints]]:
    a, b = edge_array(motif.edges)
    same = np.arange(pairs).repeat(len(a)), np.tile(a, pairs), np.tile(b, pairs)
    return {1: same, 0: gnm(draw, pairs, motif.nodes, len(a))}


def as_graph_set(
    graph: Ints, i: Ints, j: Ints, sizes: Ints, y: Ints, degrees: int = DEGREES
) -> GraphSet:
    """Make a set of undirected edges, with degrees of neighbors as features."""
    node_ptr = np.concatenate([[0], sizes.cumsum()])
    graph, source, target = (np.concatenate(both) for both in ((graph, graph), (i, j), (j, i)))
    order = np.lexsort((target, source, graph))
    graph, source, target = graph[order], source[order], target[order]
    shift = node_ptr[graph]
    x = top_degrees(source + shift, target + shift, int(node_ptr[-1]), degrees)
    edge_ptr = np.searchsorted(graph, np.arange(len(sizes) + 1))
    return GraphSet(
        torch.from_numpy(x),
        torch.from_numpy(np.stack([source, target])),
        torch.from_numpy(y),
        torch.from_numpy(node_ptr),
        torch.from_numpy(edge_ptr),
    )
