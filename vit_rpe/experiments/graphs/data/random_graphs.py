"""Random graphs, many at a time, with numpy.

An undirected edge of a graph is a pair (i, j) with i > j; pairs are numbered 0: (1, 0), 1: (2, 0),
2: (2, 1), ... Shapes: S graphs, N nodes of each, E edges of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def successes(draw: np.random.Generator, trials: int, p: float) -> Ints:
    """Return which of so many independent trials succeed, in O(successes).

    The distance from one success to the next is geometric (Batagelj and Brandes, 2005).
    """
    found: list[Ints] = []
    last = -1
    while last < trials:
        expected = (trials - last) * p
        more = draw.geometric(p, size=int(expected + 4 * expected**0.5) + 8)
        # a distance past the end is cut before it can overflow the sum
        steps = last + np.minimum(more, trials + 1).cumsum()
        found.append(steps)
        last = int(steps[-1])
    all_found = np.concatenate(found)
    return all_found[all_found < trials]


def pair_of(number: Ints) -> tuple[Ints, Ints]:
    """Return the pair i > j of each number."""
    i = ((1 + np.sqrt(8.0 * number + 1)) / 2).astype(np.int64)
    i -= i * (i - 1) // 2 > number  # the root was rounded up
    i += i * (i + 1) // 2 <= number  # or down
    return i, number - i * (i - 1) // 2


def gnp(draw: np.random.Generator, graphs: int, nodes: int, p: float) -> tuple[Ints, Ints, Ints]:
    """Draw Erdos-Renyi graphs: each pair is an edge with probability p. O(E).

    Returns the graph, i and j of each edge.
    """
    pairs = nodes * (nodes - 1) // 2
    hits = successes(draw, graphs * pairs, p)
    return hits // pairs, *pair_of(hits % pairs)


def gnm(draw: np.random.Generator, graphs: int, nodes: int, edges: int) -> tuple[Ints, Ints, Ints]:
    """Draw graphs with so many different edges, for small N: O(S N^2)."""
    pairs = nodes * (nodes - 1) // 2
    chosen = draw.random((graphs, pairs)).argpartition(edges - 1, 1)[:, :edges]
    chosen.sort(1)
    return np.arange(graphs).repeat(edges), *pair_of(chosen.ravel())


def drop_isolated(
    graph: Ints, i: Ints, j: Ints, graphs: int, nodes: int
) -> tuple[Ints, Ints, Ints]:
    """Remove nodes without an edge; return the number of nodes left in each graph, and i and j."""
    seen = np.zeros(graphs * nodes, dtype=bool)
    seen[graph * nodes + i] = seen[graph * nodes + j] = True
    seen = seen.reshape(graphs, nodes)
    number = seen.cumsum(1) - 1
    return seen.sum(1), number[graph, i], number[graph, j]


def joins(draw: np.random.Generator, left: Ints, right: int, p: float) -> tuple[Ints, Ints, Ints]:
    """Join nodes of two parts, `left` (S,) and `right` of them: each pair with probability p.

    A graph that would have no such edge gets one. Returns the graph, and the node of each part.
    """
    ends = (left * right).cumsum()
    hits = successes(draw, int(ends[-1]), p)
    graph = ends.searchsorted(hits, side="right")
    missing = np.setdiff1d(np.arange(len(left)), graph)
    begins = ends - left * right
    more = begins[missing] + draw.integers(left[missing] * right)
    hits, graph = np.concatenate([hits, more]), np.concatenate([graph, missing])
    order = hits.argsort()
    hits, graph = hits[order], graph[order]
    within = hits - begins[graph]
    return graph, within // right, within % right


def top_degrees(source: Ints, target: Ints, nodes: int, count: int) -> NDArray[np.float32]:
    """Return the largest degrees among the neighbors of each node, padded by zeros: (L, count).

    Edges are directed, and there in both directions.
    """
    degree = np.bincount(target, minlength=nodes)
    order = np.lexsort((-degree[source], target))
    source, target = source[order], target[order]
    place = np.arange(len(target)) - (degree.cumsum() - degree)[target]
    first = place < count
    found = np.zeros((nodes, count), np.float32)
    found[target[first], place[first]] = degree[source[first]]
    return found


def edge_array(edges: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Return the ends of listed edges."""
    i, j = np.array(edges, dtype=np.int64).T
    return i, j
