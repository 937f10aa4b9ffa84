"""Graphs to learn from: motif graphs made on the spot, citation graphs from a folder."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.common.command_line import fail

try:
    import networkx as nx
    from torch_geometric.data import Data
except ModuleNotFoundError as error:
    fail("graphs", f"{error}; pip install vit_rpe[graph]")

BASE_NODES, BASE_EDGE, JOIN = 100, 0.0267, 0.004  # the paper's set with a grid as motif
DEGREES = 5  # of a node's neighbours, the largest: its features
CITATION = ("cora", "citeseer", "pubmed")


def motif_set(pairs: int, seed: int) -> list[Data]:
    """Erdos-Renyi graphs with a 3 x 3 grid (class 1), or with as many random edges (class 0).

    The two of a pair share the base graph.
    """
    draw = random.Random(seed)
    graphs = []
    for _ in range(pairs):
        base = nx.gnp_random_graph(BASE_NODES, BASE_EDGE, seed=draw.randrange(2**31))
        base.remove_nodes_from(list(nx.isolates(base)))
        grid = nx.grid_2d_graph(3, 3)
        other = nx.gnm_random_graph(9, grid.number_of_edges(), seed=draw.randrange(2**31))
        graphs += [_joined(base, motif, label, draw) for label, motif in ((1, grid), (0, other))]
    return graphs


def _joined(base: nx.Graph, motif: nx.Graph, label: int, draw: random.Random) -> Data:
    graph = nx.disjoint_union(base, motif)
    split, n = base.number_of_nodes(), graph.number_of_nodes()
    pairs = [(i, j) for i in range(split) for j in range(split, n)]
    edges = [pair for pair in pairs if draw.random() < JOIN] or [draw.choice(pairs)]
    graph.add_edges_from(edges)
    once = torch.tensor(list(graph.edges())).mT
    edge_index = torch.cat([once, once.flip(0)], 1)
    data = Data(x=_top_degrees(graph), edge_index=edge_index, y=label, num_nodes=n)
    data.motif = torch.arange(n) >= split
    return data


def _top_degrees(graph: nx.Graph) -> Tensor:
    rows = []
    for node in range(graph.number_of_nodes()):
        degrees = sorted((graph.degree[j] for j in graph.neighbors(node)), reverse=True)[:DEGREES]
        rows.append(degrees + [0] * (DEGREES - len(degrees)))
    return torch.tensor(rows, dtype=torch.float32)


def citation(name: str) -> dict[str, Any]:
    """x (rows that sum to 1), y, edge_index and the public split of a citation graph."""
    folder = os.environ.get("VIT_RPE_DATA")
    if not folder:
        raise ValueError("set VIT_RPE_DATA to the folder that holds planetoid/*.npz")
    file = Path(folder) / "planetoid" / f"{name}.npz"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing")
    with np.load(file, allow_pickle=False) as stored:
        part = {key: torch.from_numpy(stored[key]) for key in stored.files}
    shape = part["x_shape"].tolist()
    row = torch.arange(shape[0]).repeat_interleave(part["x_indptr"].diff().long())
    x = torch.zeros(shape)
    x[row, part["x_indices"].long()] = part["x_data"].float()
    x = x / x.sum(1, keepdim=True).clamp(min=1e-12)
    splits = {key: part[f"{key}_idx"].long() for key in ("train", "val", "test")}
    return {"x": x, "y": part["y"].long(), "edge_index": part["edge_index"].long(), **splits}
