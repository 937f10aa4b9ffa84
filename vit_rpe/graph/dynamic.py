"""Dynamic GKAT: walks that follow the attention, drawn afresh each epoch (paper, appendix)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .edges import as_graph, edge_weights
from .kernels import WalkKernel
from .layer import GKATConv
from .makers import RandomWalkMask


class DynamicWalks:
    """The mask of one graph, or of one batch, that is drawn again from what a layer attends to.

    The first walks take all edges alike. After `redraw` a walk goes from i to j with a probability
    proportional to the masked attention M[i, j] K(q_i, k_j) at that edge, the mean over heads:
    O(E) for a layer, never the L x L matrix. Edges that are there keep their own weights as
    factors.

        walks = DynamicWalks(edge_index, num_nodes)
        for epoch in range(epochs):
            out = conv(x, mask=walks.mask)
            ...
            walks.redraw(conv, x)
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        walks: RandomWalkMask | None = None,
    ):
        self.num_nodes = as_graph(edge_index, num_nodes, edge_weight, undirected=False)
        self.edge_index = edge_index
        self.edge_weight = edge_weights(edge_index, edge_weight)
        self.walks = walks or RandomWalkMask()
        self.draws = 0
        self.mask = self._draw(self.edge_weight)

    def redraw(self, conv: GKATConv, x: Tensor) -> WalkKernel:
        """New walks by the attention of `conv` under the mask so far; also the new `mask`."""
        attention = conv.edge_attention(x, self.edge_index, self.mask).mean(0).clamp(min=0.0)
        weight = attention.double() * self.edge_weight
        source = self.edge_index[0]
        total = weight.new_zeros(self.num_nodes).index_add_(0, source, weight)
        # where no neighbour is attended to, all edges are taken alike
        blind = ~(total > 0)
        self.mask = self._draw(torch.where(blind[source], self.edge_weight.double(), weight))
        return self.mask

    def _draw(self, weight: Tensor) -> WalkKernel:
        make = replace(self.walks, seed=self.walks.seed + self.draws)
        self.draws += 1
        return make(self.edge_index, self.num_nodes, weight)
