"""Pictures of `graphs.py`: a graph with its attention, and graph sketches as colors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vit_rpe.attention import attention_rows
from vit_rpe.graph import RWGNK, GKATConv, WalkKernel, graph_sketches
from vit_rpe.report import MARK, WEIGHTS

if TYPE_CHECKING:
    from vit_rpe.experiments.graphs import GraphBatch


@torch.no_grad()
def mean_attention(conv: GKATConv, x: Tensor, mask: WalkKernel, node: int) -> Tensor:
    """Compute what a node attends to, the mean over heads: (L,)."""
    q, k, _ = conv.queries_keys_values(x)
    return attention_rows(*conv.attention.query_key_features(q, k, mask), mask, node)[:, 0].mean(0)


def draw_attention(data: GraphBatch, motif_nodes: int, conv: GKATConv, file: Path) -> None:
    """Draw where two nodes look; one of them is in the motif, the last nodes of the graph."""
    assert isinstance(data.mask, WalkKernel)
    place, edges = _layout(data.edge_index, data.num_nodes)
    motif = list(range(data.num_nodes - motif_nodes, data.num_nodes))
    queries = {"a node of the motif": motif[4], "a node of the base graph": 0}
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    for axes, (title, node) in zip(figure.subplots(1, 2), queries.items(), strict=True):
        seen = mean_attention(conv, data.x, data.mask, node)
        _edges(axes, place, edges)
        outline = ["tab:green" if i in motif else "black" for i in range(len(place))]
        drawn = axes.scatter(*place.T, c=seen.sqrt(), s=45, cmap=WEIGHTS, edgecolors=outline,
                             linewidths=1.2, zorder=2)  # fmt: skip
        axes.scatter(*place[node], s=170, facecolors="none", edgecolors=MARK, linewidths=2.5)
        axes.set(title=f"attention of {title} (circled); the motif is outlined in green")
        axes.title.set_fontsize(9)
        axes.axis("off")
        figure.colorbar(drawn, ax=axes, shrink=0.7, label="square root of the attention")
    figure.savefig(file, dpi=80)


def draw_sketches(file: Path, seed: int = 0) -> None:
    """One graph of three groups, its nodes colored by features, topology, and both."""
    graph = nx.random_partition_graph([20, 20, 20], 0.3, 0.01, seed=seed)
    once = torch.tensor(list(graph.edges())).mT
    edge_index = torch.cat([once, once.flip(0)], 1)
    kind = torch.arange(60) % 2  # a feature that the groups do not know
    x = torch.nn.functional.one_hot(kind, 2).float() * 4 - 3  # nearly 0 or 2 after ELU + 1
    mask = RWGNK(num_walks=200)(edge_index, num_nodes=60)
    same = torch.ones(60, 1)
    views = {
        "topology alone": graph_sketches(same, mask, 512, seed=seed),
        "features alone": torch.nn.functional.elu(x) + 1,
        "graphots: both": graph_sketches(x, mask, 512, seed=seed),
    }
    place, edges = _layout(edge_index, 60)
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    for axes, (title, sketch) in zip(figure.subplots(1, 3), views.items(), strict=True):
        _edges(axes, place, edges)
        for marker, chosen in (("o", kind == 0), ("s", kind == 1)):
            axes.scatter(*place[chosen].T, c=_colors(sketch)[chosen], s=70, marker=marker,
                         edgecolors="black", linewidths=0.7, zorder=2)  # fmt: skip
        axes.set_title(title)
        axes.axis("off")
    figure.suptitle("three groups of nodes; the feature is shown by circle or square")
    figure.savefig(file, dpi=80)


def _colors(sketch: Tensor) -> Tensor:
    """The first three principal components as red, green and blue."""
    centered = sketch - sketch.mean(0)
    u, s, _ = torch.linalg.svd(centered, full_matrices=False)
    parts = (u * s)[:, :3]
    parts = torch.nn.functional.pad(parts, (0, 3 - parts.shape[1]))
    span = parts.amax(0) - parts.amin(0)
    return (parts - parts.amin(0)) / span.clamp(min=1e-3 * float(span.max()))


def _layout(edge_index: Tensor, n: int) -> tuple[Any, list[tuple[int, int]]]:
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edge_index.mT.tolist())
    place = nx.spring_layout(_tied(graph), seed=1, iterations=150, k=1.6 / n**0.5)
    return torch.tensor([place[i].tolist() for i in range(n)]), list(graph.edges())


def _tied(graph: nx.Graph) -> nx.Graph:
    """Tie small components to the largest one, or they would drift far away and squeeze it."""
    largest, *others = sorted(nx.connected_components(graph), key=len, reverse=True)
    tied = graph.copy()
    tied.add_edges_from((min(largest), min(part)) for part in others)
    return tied


def _edges(axes: Any, place: Tensor, edges: list[tuple[int, int]]) -> None:
    for i, j in edges:
        axes.plot(*place[[i, j]].T, color="#bbbbbb", linewidth=0.8, zorder=1)
