"""Graphs for tests, as PyG's data."""

import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Data  # noqa: E402

from tests.graph.graphs import EMPTY, random_graph, random_tree  # noqa: E402


def graphs() -> list[Data]:
    """Half of them empty or single nodes."""
    torch.manual_seed(1)
    edges = [random_graph(9, 14), EMPTY, random_tree(7), EMPTY, EMPTY, random_graph(6, 5)]
    sizes = [9, 1, 7, 0, 1, 8]
    return [
        Data(x=torch.randn(n, 5), edge_index=e, num_nodes=n)
        for n, e in zip(sizes, edges, strict=True)
    ]
