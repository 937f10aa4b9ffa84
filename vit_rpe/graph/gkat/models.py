"""GKAT for the classification of nodes and of graphs (paper, Sec. 5). Needs torch-geometric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_mean_pool

from vit_rpe.masks import Mask

from ..edges import Graph
from .conv import GKATConv

READOUTS = ("mean", "mf", "dm")


class GKAT(nn.Module):
    """GKATConv layers with ELU after each; the mask is made once for all of them.

    `heads` has one number for each layer, each of `hidden_channels`; other arguments of GKATConv
    are passed on. Features are dropped before every layer with probability `dropout`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        heads: Sequence[int] = (2, 2),
        dropout: float = 0.0,
        **conv: Any,
    ):
        super().__init__()
        widths = [in_channels, *(h * hidden_channels for h in heads)]
        self.convs = nn.ModuleList(
            GKATConv(width, hidden_channels, h, **conv)
            for width, h in zip(widths, heads, strict=False)
        )
        self.out_channels = widths[-1]
        self.dropout = dropout

    def reset_parameters(self) -> None:
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]

    def mask_of(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        mask: Mask | None = None,
    ) -> Mask | None:
        """Return the given mask, else make one by the first layer's maker; None for no nodes."""
        if mask is not None or not len(x):
            return mask
        first: GKATConv = self.convs[0]  # type: ignore[assignment]
        return first.mask_of(x, edge_index, edge_weight)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Map (L, in_channels) to (L, heads * hidden_channels)."""
        mask = self.mask_of(x, edge_index, edge_weight, mask=mask)
        for conv in self.convs:
            x = F.dropout(x, self.dropout, self.training)
            x = F.elu(conv(x, batch=batch, mask=mask))
        return x


class GKATNodeClassifier(nn.Module):
    """Two layers as in GAT: heads side by side, then one head (or the mean of some) per class."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_classes: int,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        **conv: Any,
    ):
        super().__init__()
        self.body = GKAT(in_channels, hidden_channels, (heads,), dropout, **conv)
        self.head = GKATConv(heads * hidden_channels, num_classes, out_heads, concat=False, **conv)
        self.dropout = dropout

    def reset_parameters(self) -> None:
        self.body.reset_parameters()
        self.head.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Compute logits (L, num_classes)."""
        mask = self.body.mask_of(x, edge_index, edge_weight, mask=mask)
        x = self.body(x, batch=batch, mask=mask)
        return self.head(F.dropout(x, self.dropout, self.training), batch=batch, mask=mask)


class GKATGraphClassifier(nn.Module):
    """GKAT layers, then a readout of all nodes of a graph.

    | `readout` | |
    |---|---|
    | `mean` | mean of the nodes, linear: the paper's motif model |
    | `mf` | sum of the nodes, MLP of one hidden layer: molecular fingerprints |
    | `dm` | MLP of each node, sum, MLP: DeepMultisets |
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_classes: int,
        heads: Sequence[int] = (2, 2),
        readout: str = "mean",
        dropout: float = 0.0,
        **conv: Any,
    ):
        super().__init__()
        if readout not in READOUTS:
            raise ValueError(f"readout must be one of {', '.join(READOUTS)}, got {readout!r}")
        self.body = GKAT(in_channels, hidden_channels, heads, dropout, **conv)
        width = self.body.out_channels
        self.before: nn.Module = nn.Identity()
        self.after: nn.Module = nn.Linear(width, num_classes)
        self.pool = global_mean_pool if readout == "mean" else global_add_pool
        if readout == "dm":
            self.before = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        if readout != "mean":
            self.after = nn.Sequential(
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(width, num_classes),
            )

    def reset_parameters(self) -> None:
        self.body.reset_parameters()
        for part in (*self.before.modules(), *self.after.modules()):
            if isinstance(part, nn.Linear):
                part.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Compute logits (graphs, num_classes); `batch` (L,) says which graph a node is in.

        `batch_size` is needed where the last graphs may have no nodes.
        """
        nodes = self.body(x, edge_index, edge_weight, batch=batch, mask=mask)
        if batch is None:
            batch = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            batch_size = 1
        return self.after(self.pool(self.before(nodes), batch, batch_size))
