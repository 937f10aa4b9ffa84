"""Graphs to learn from: motif graphs are those of the paper."""

from __future__ import annotations

from importlib import import_module

import networkx as nx
import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")


def test_motif_graphs_are_as_the_paper_says():
    data = import_module("tools.common.graph_data")
    graphs = data.motif_set(6, seed=3)
    assert [int(g.y) for g in graphs] == [1, 0] * 6
    for g in graphs:
        motif = g.motif
        inside = motif[g.edge_index[0]] & motif[g.edge_index[1]]
        across = motif[g.edge_index[0]] & ~motif[g.edge_index[1]]
        assert motif.sum() == 9 and inside.sum() == 2 * 12 and across.sum() >= 1
        once = g.edge_index[:, inside].mT.tolist()
        is_grid = nx.is_isomorphic(nx.Graph(once), nx.grid_2d_graph(3, 3))
        assert is_grid or g.y == 0
        plain = nx.Graph(g.edge_index.mT.tolist())
        top = sorted((plain.degree[j] for j in plain.neighbors(0)), reverse=True)[:5]
        assert g.x[0].tolist() == top + [0] * (5 - len(top))
    pair = graphs[0], graphs[1]
    base = [set(map(tuple, g.edge_index[:, ~(g.motif[g.edge_index].any(0))].mT.tolist()))
            for g in pair]  # fmt: skip
    assert base[0] == base[1]
