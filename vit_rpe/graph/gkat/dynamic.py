"""Dynamic GKAT: walks that follow the attention, drawn again each epoch (paper, appendix)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..edges import Graph, as_graph
from ..walks.kernel import RWGNK, WalkKernel
from .conv import GKATConv


class DynamicWalks:
    """The mask of one graph, or of one batch, redrawn from what a layer attends to.

    The first walks take the edges by their weights. After `redraw` a walk goes from i to j with a
    probability proportional to the masked attention M[i, j] K(q_i, k_j) at that edge, the mean over
    heads: never the L x L matrix of a large graph. The edges' own weights remain as factors.

        walks = DynamicWalks(edge_index)
        for epoch in range(epochs):
            out = conv(x, mask=walks.mask)
            ...
            walks.redraw(conv, x)
    """

    def __init__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        walks: RWGNK | None = None,
    ):
        graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes, undirected=False)
        self.edge_index, self.num_nodes = graph.edge_index, graph.num_nodes
        self.edge_weight = graph.weights
        self.walks = walks or RWGNK()
        self.draws = 0
        self.mask = self._draw(self.edge_weight)

    def redraw(self, conv: GKATConv, x: Tensor) -> WalkKernel:
        """Draw new walks by the attention of `conv` under the current mask; set and return it."""
        attention = conv.edge_attention(x, self.edge_index, self.mask).mean(0).clamp(min=0.0)
        weight = attention.double() * self.edge_weight
        source = self.edge_index[0]
        total = weight.new_zeros(self.num_nodes).index_add_(0, source, weight)
        # where no neighbor is attended to, edges count by their own weights
        blind = ~(total > 0)
        self.mask = self._draw(torch.where(blind[source], self.edge_weight.double(), weight))
        return self.mask

    def _draw(self, weight: Tensor) -> WalkKernel:
        make = replace(self.walks, seed=self.walks.seed + self.draws)
        self.draws += 1
        return make(self.edge_index, weight, num_nodes=self.num_nodes)
