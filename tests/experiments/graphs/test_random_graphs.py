"""Random graphs in bulk: structure by networkx, distributions by counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
nx = pytest.importorskip("networkx")

from vit_rpe.experiments.graphs.data.cycles import random_trees, tree_distances  # noqa: E402
from vit_rpe.experiments.graphs.data.random_graphs import (  # noqa: E402
    drop_isolated,
    gnm,
    gnp,
    joins,
    pair_of,
    successes,
    top_degrees,
)


def generator(seed=0):
    return np.random.default_rng(seed)


def test_pairs_are_numbered_without_gaps():
    i, j = pair_of(np.arange(45))
    assert list(zip(i, j, strict=True)) == [(a, b) for a in range(10) for b in range(a)]


@pytest.mark.parametrize("i", [2, 3, 99_999, 3_000_000])
def test_pairs_are_exact_where_the_root_is_rounded(i):
    first = i * (i - 1) // 2
    ends = np.array([first - 1, first, first + i - 1, first + i])
    assert np.stack(pair_of(ends)).T.tolist() == [[i - 1, i - 2], [i, 0], [i, i - 1], [i + 1, 0]]


def test_successes_are_those_of_independent_trials():
    trials, p, repeats = 40, 0.07, 4000
    hits = successes(generator(), trials * repeats, p)
    assert (np.diff(hits) > 0).all() and hits[0] >= 0 and hits[-1] < trials * repeats
    each = np.bincount(hits % trials, minlength=trials)  # every trial alike
    assert abs(each - repeats * p).max() < 4.5 * (repeats * p * (1 - p)) ** 0.5
    count = np.bincount(hits // trials, minlength=repeats)  # binomial
    assert count.mean() == pytest.approx(trials * p, rel=0.03)
    assert count.var() == pytest.approx(trials * p * (1 - p), rel=0.1)
    after = np.isin(hits + 1, hits).mean()  # the next one does not know of it
    assert after == pytest.approx(p, abs=0.01)


def test_few_successes_among_many_trials():
    assert len(successes(generator(), 10**13, 1e-13)) < 20
    assert list(successes(generator(), 3, 1.0)) == [0, 1, 2]


def test_gnp_has_the_edges_of_networkx_on_average():
    graphs, nodes, p = 300, 30, 0.1
    graph, i, j = gnp(generator(), graphs, nodes, p)
    assert ((i > j) & (i < nodes) & (j >= 0)).all()
    assert len({*zip(graph, i, j, strict=True)}) == len(i)
    slow = [nx.gnp_random_graph(nodes, p, seed=s).number_of_edges() for s in range(graphs)]
    count = np.bincount(graph, minlength=graphs)
    assert count.mean() == pytest.approx(np.mean(slow), abs=1.5)
    assert count.std() == pytest.approx(np.std(slow), rel=0.2)


def test_gnm_chooses_every_set_of_edges_alike():
    graph, i, j = gnm(generator(), 3000, 4, 2)
    assert (np.bincount(graph) == 2).all()
    pairs = (i * (i - 1) // 2 + j).reshape(-1, 2)
    found = Counter(map(tuple, pairs.tolist()))
    assert len(found) == 15  # 6 pairs, 2 of them
    assert abs(np.array([*found.values()]) - 200).max() < 60


def test_isolated_nodes_go_and_the_graph_stays_the_same():
    graphs, nodes = 5, 20
    graph, i, j = gnp(generator(1), graphs, nodes, 0.06)
    sizes, a, b = drop_isolated(graph, i, j, graphs, nodes)
    for g in range(graphs):
        slow = nx.Graph([*zip(i[graph == g], j[graph == g], strict=True)])
        fast = nx.Graph([*zip(a[graph == g], b[graph == g], strict=True)])
        assert sizes[g] == len(slow) < nodes and set(fast) == set(range(sizes[g]))
        order = {old: new for new, old in enumerate(sorted(slow))}
        assert {frozenset(e) for e in fast.edges} == {
            frozenset(order[x] for x in e) for e in slow.edges
        }


def test_joins_have_their_probability_and_never_none():
    left = np.array([3, 8, 5] * 2000)
    graph, u, v = joins(generator(), left, 4, 0.1)
    assert (u < left[graph]).all() and (v < 4).all() and (np.diff(graph) >= 0).all()
    assert len({*zip(graph, u, v, strict=True)}) == len(u)
    count = np.bincount(graph, minlength=len(left))
    assert count.min() == 1
    for size in (3, 8, 5):
        pairs = 4 * size
        wanted = pairs * 0.1 + 0.9**pairs  # one more where there would be none
        assert count[left == size].mean() == pytest.approx(wanted, rel=0.04)


def test_top_degrees_by_definition():
    graph = nx.gnp_random_graph(25, 0.2, seed=3)
    source, target = np.array([*graph.edges, *(e[::-1] for e in graph.edges)]).T
    shuffled = generator().permutation(len(source))
    found = top_degrees(source[shuffled], target[shuffled], 25, 4)
    for node in graph:
        degrees = sorted((graph.degree[j] for j in graph[node]), reverse=True)[:4]
        assert found[node].tolist() == degrees + [0] * (4 - len(degrees))


def test_trees_are_uniform():
    child, parent = random_trees(generator(), 8000, 4)
    edges = [
        frozenset(frozenset(pair) for pair in zip(c, p, strict=True))
        for c, p in zip(child.tolist(), parent.tolist(), strict=True)
    ]
    found = Counter(edges)
    assert len(found) == 16  # Cayley: n^(n - 2)
    assert abs(np.array([*found.values()]) - 500).max() < 110


def test_trees_and_their_distances_by_networkx():
    child, parent = random_trees(generator(), 6, 17)
    distance = tree_distances(child, parent)
    for c, p, d in zip(child, parent, distance, strict=True):
        tree = nx.Graph([*zip(c.tolist(), p.tolist(), strict=True)])
        assert nx.is_tree(tree) and len(tree) == 17
        slow = dict(nx.all_pairs_shortest_path_length(tree))
        assert d.tolist() == [[slow[i][j] for j in range(17)] for i in range(17)]
