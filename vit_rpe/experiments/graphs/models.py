"""GKAT and its rivals in plain PyG, for nodes and for graphs.

Models get a graph as it comes from `data`: features, edges, and a mask where they need one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    ChebConv,
    GATConv,
    GCNConv,
    GINConv,
    global_add_pool,
    global_mean_pool,
)

from vit_rpe.graph import GKATConv
from vit_rpe.masks import Mask

from .data import GraphBatch, NodeTask


def convolve(layer: nn.Module, x: Tensor, data: GraphBatch | NodeTask) -> Tensor:
    """Call a layer on the nodes of a graph or a batch."""
    if isinstance(layer, TreeLayer):
        return layer(x, data)
    if isinstance(layer, GKATConv):  # without a mask it makes its own
        return layer(x, data.edge_index, mask=data.mask, batch=data.batch)
    return layer(x, data.edge_index)


class TreeLayer(nn.Module):
    """GKAT under exp(-rate distance) in the tree of a batch; each head learns its rate."""

    def __init__(self, conv: GKATConv):
        super().__init__()
        self.conv = conv
        self.log_rate = nn.Parameter(torch.linspace(-2, 0, conv.heads))

    def forward(self, x: Tensor, data: GraphBatch | NodeTask) -> Tensor:
        assert isinstance(data, GraphBatch) and data.tree is not None
        mask: Mask = data.tree.with_values(a=-self.log_rate.exp())
        return self.conv(x, mask=mask, batch=data.batch)


class GraphNet(nn.Module):
    """Layers with an activation after each, the mean of the nodes, a linear map to the classes."""

    def __init__(
        self, layers: Sequence[nn.Module], width: int, classes: int, act: Callable[[Tensor], Tensor]
    ):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(width, classes)
        self.act = act

    def forward(self, data: GraphBatch) -> Tensor:
        x = data.x
        for layer in self.layers:
            x = self.act(convolve(layer, x, data))
        return self.out(global_mean_pool(x, data.batch, len(data.y)))


def gcn(channels: int, widths: Sequence[int], classes: int = 2) -> GraphNet:
    """GCN with layers of these widths."""
    layers = [GCNConv(i, o) for i, o in _steps(channels, widths)]
    return GraphNet(layers, widths[-1], classes, F.relu)


def chebnet(
    channels: int, widths: Sequence[int], filters: Sequence[int], classes: int = 2
) -> GraphNet:
    """ChebNet (the paper's SGC): polynomials of the Laplacian, so many filters in each layer."""
    layers = [
        ChebConv(i, o, K=k) for (i, o), k in zip(_steps(channels, widths), filters, strict=True)
    ]
    return GraphNet(layers, widths[-1], classes, F.relu)


def gin(channels: int, widths: Sequence[int], classes: int = 2) -> GraphNet:
    """GIN, with an MLP of one hidden layer of the same width in each layer."""
    return GraphNet(gin_layers(channels, widths), widths[-1], classes, F.relu)


def gat(
    channels: int, width: int, heads: Sequence[int], bias: bool = True, classes: int = 2
) -> GraphNet:
    """GAT with so many heads in each layer, each of this width."""
    layers = [GATConv(i, width, h, bias=bias) for (i, _), h in _headed(channels, width, heads)]
    return GraphNet(layers, width * heads[-1], classes, F.elu)


def gkat(
    channels: int,
    width: int,
    heads: Sequence[int],
    bias: bool = True,
    classes: int = 2,
    **conv: Any,
) -> GraphNet:
    """GKAT with so many heads in each layer, each of this width; `conv` goes to GKATConv."""
    layers = gkat_layers(channels, width, heads, bias=bias, **conv)
    return GraphNet(layers, width * heads[-1], classes, F.elu)


def gkat_on_trees(
    channels: int, width: int, heads: Sequence[int], classes: int = 2, **conv: Any
) -> GraphNet:
    """GKAT whose masks decay along a tree, one rate for each head."""
    convs = gkat_layers(channels, width, heads, path="product", **conv)
    layers = [TreeLayer(each) for each in convs]
    return GraphNet(layers, width * heads[-1], classes, F.elu)


def gkat_layers(channels: int, width: int, heads: Sequence[int], **conv: Any) -> list[GKATConv]:
    """Stack layers of GKAT, with so many heads each."""
    return [GKATConv(i, width, h, **conv) for (i, _), h in _headed(channels, width, heads)]


def gin_layers(channels: int, widths: Sequence[int], norm: bool = False) -> list[GINConv]:
    """Stack layers of GIN, each with an MLP of one hidden layer, and batch norm if wanted."""
    return [GINConv(_mlp(i, o, o, norm=norm)) for i, o in _steps(channels, widths)]


def _steps(channels: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([channels, *widths], widths, strict=False))


def _headed(channels: int, width: int, heads: Sequence[int]) -> list[tuple[tuple[int, int], int]]:
    return list(zip(_steps(channels, [width * h for h in heads]), heads, strict=True))


def _mlp(i: int, hidden: int, o: int, norm: bool) -> nn.Sequential:
    between = [nn.BatchNorm1d(hidden)] if norm else []
    return nn.Sequential(nn.Linear(i, hidden), *between, nn.ReLU(), nn.Linear(hidden, o))


class NodeNet(nn.Module):
    """Two layers that classify nodes, as in GAT: features are dropped before each."""

    def __init__(self, first: nn.Module, second: nn.Module, dropout: float):
        super().__init__()
        self.first, self.second, self.dropout = first, second, dropout

    def forward(self, data: NodeTask) -> Tensor:
        x = F.elu(convolve(self.first, self._dropped(data.x), data))
        return convolve(self.second, self._dropped(x), data)

    def _dropped(self, x: Tensor) -> Tensor:
        if not x.is_sparse:
            return F.dropout(x, self.dropout, self.training)
        values = F.dropout(x.values(), self.dropout, self.training)
        return torch.sparse_coo_tensor(x.indices(), values, x.shape, is_coalesced=True)


class Fingerprint(nn.Module):
    """Molecular fingerprints (the paper's MF): the sum of the nodes, then an MLP."""

    def __init__(self, channels: int, hidden: int, classes: int, dropout: float = 0.0):
        super().__init__()
        self.after = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
        )

    def forward(self, x: Tensor, batch: Tensor, graphs: int) -> Tensor:
        return self.after(global_add_pool(x, batch, graphs))


class Multiset(nn.Module):
    """DeepMultisets (the paper's DM): a map of each node, the sum of the nodes, then an MLP."""

    def __init__(self, channels: int, hidden: int, classes: int, dropout: float = 0.0):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU())
        self.after = Fingerprint(hidden, hidden, classes, dropout)

    def forward(self, x: Tensor, batch: Tensor, graphs: int) -> Tensor:
        return self.after(self.before(x), batch, graphs)


class PooledNet(nn.Module):
    """Batch norm, a linear map, layers, then the baseline: the paper's models of TU sets.

    Without layers it is the baseline itself; `fc` is the width of the linear map, if there is one.
    """

    def __init__(
        self,
        channels: int,
        layers: Callable[[int], tuple[Sequence[nn.Module], int]],
        head: Callable[[int], nn.Module],
        norm: bool = False,
        fc: int | None = None,
        act: Callable[[Tensor], Tensor] = F.elu,
    ):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels) if norm else nn.Identity()
        self.before = nn.Sequential(nn.Linear(channels, fc), nn.ReLU()) if fc else nn.Identity()
        made, width = layers(fc or channels)
        self.layers = nn.ModuleList(made)
        self.head = head(width)
        self.act = act

    def forward(self, data: GraphBatch) -> Tensor:
        x = self.before(self.norm(data.x))
        for layer in self.layers:
            x = self.act(convolve(layer, x, data))
        return self.head(x, data.batch, len(data.y))


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
