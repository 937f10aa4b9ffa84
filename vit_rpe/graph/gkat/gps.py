"""A layer of local messages and global masked attention (GPS). Needs torch-geometric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from vit_rpe.masks import Mask

from .conv import GKATConv
from .models import apply_norm


class GKATBlock(nn.Module):
    """A layer as PyG's `GPSConv`, whose global attention is masked by the graph (GKATConv).

        local = norm(x + conv(x)),    far = norm(x + attention(x))
        out = norm(h + MLP(h)),       h = local + far

    Its attention is linear in the number of nodes, and no node sees another graph of its batch.

    Args:
        channels: of nodes, in and out.
        conv: a layer of PyG for the local messages, called with (x, edge_index, ...); None: none.
        heads: of the attention.
        dropout: after each of the three parts.
        act, norm, norm_kwargs: as in `GPSConv`.
        attention: other arguments of GKATConv.
    """

    def __init__(
        self,
        channels: int,
        conv: nn.Module | None = None,
        heads: int = 1,
        dropout: float = 0.0,
        act: str | Callable | None = "relu",
        norm: str | Callable | None = "batch_norm",
        norm_kwargs: dict[str, Any] | None = None,
        **attention: Any,
    ):
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"{channels} channels cannot be cut into {heads} heads")
        self.channels, self.conv, self.dropout = channels, conv, dropout
        self.attention = GKATConv(channels, channels // heads, heads, **attention)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            activation_resolver(act) or nn.Identity(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels, channels),
        )
        self.norms = nn.ModuleList(
            normalization_resolver(norm, channels, **(norm_kwargs or {})) or nn.Identity()
            for _ in range(3)
        )

    def reset_parameters(self) -> None:
        for part in (self.conv, self.attention, *self.mlp, *self.norms):
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()  # pyright: ignore[reportCallIssue, reportOptionalMemberAccess]

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
        **local: Any,
    ) -> Tensor:
        """Map (L, channels) to (L, channels).

        `edge_weight` is for the walks; what the local layer needs beside the edges comes by name
        (`edge_attr=...`).
        """
        far = self.attention(x, edge_index, edge_weight, batch=batch, mask=mask)
        h = self._added(x, far, 0, batch)
        if self.conv is not None:
            h = h + self._added(x, self.conv(x, edge_index, **local), 1, batch)
        return self._added(h, self.mlp(h), 2, batch)

    def _added(self, x: Tensor, more: Tensor, part: int, batch: Tensor | None) -> Tensor:
        return apply_norm(self.norms[part], x + F.dropout(more, self.dropout, self.training), batch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, conv={self.conv}, {self.attention})"
