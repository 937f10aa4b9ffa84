"""GKAT's layer: masked linear attention between the nodes of a graph (paper, Sec. 4.2).

Shapes: L nodes, E edges, H heads, D channels of a head, M features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.reference import safe_denominator
from vit_rpe.features import (
    ELUFeatures,
    FeatureMap,
    PositiveRandomFeatures,
    ReLUFeatures,
    SquareFeatures,
)
from vit_rpe.masks import Mask

from .additive import AdditiveFeatures
from .edges import as_count, as_graph
from .kernels import WalkKernel
from .makers import MaskMaker, RandomWalkMask, RecentMasks, as_maker

FEATURE_MAPS = ("softmax", "relu", "elu", "square", "additive")
_BLOCK = 17  # columns of Algorithm 1 that are multiplied at a time, at least
_LIVE = 28  # numbers for each of them, as the product path counts
_FAINT = 1e-30  # features below this may have lost digits


class GKATConv(nn.Module):
    """Attention of every node to all nodes of its graph, weighed by a mask made from the graph.

        out_i = sum_j M[i, j] K(q_i, k_j) v_j  /  sum_j M[i, j] K(q_i, k_j)

    for each head, with q, k, v linear in x, and K one of

    | `feature_map` | K(q, k) | features M |
    |---|---|---|
    | `softmax` | exp(q . k / sqrt D), by positive random features | `num_features` |
    | `relu`, `elu`, `square` | phi(q) . phi(k), channel by channel | D |
    | `additive` | exp(z) + exp(slope z), z = a . q + b . k: as in GAT | 2 |
    | a `FeatureMap` | its own | its own |

    The L x L matrix is never formed: O(visits M D) for random walks, Algorithm 1 of the paper.
    `explicit=True` is GKAT-0, which forms it, with the exact softmax kernel.

    Args:
        in_channels, out_channels, heads, concat, bias: as in PyG's `GATConv`; `out_channels` is D.
        mask: makes a mask from a graph, by default RWGNK. One that is given to `forward` is used
            instead; a batch of graphs is one graph of several components. The walks of a
            `RandomWalkMask` are drawn afresh in each forward pass in training, from torch's
            generator; in evaluation they are those of its seed, and graphs that were seen lately
            are not walked again.
        cached: keep the mask of the first graph, for training on one graph; its walks are those
            of the seed.
        dropout: of attention weights; only for `explicit=True`, there are none otherwise.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        *,
        feature_map: str | FeatureMap = "softmax",
        num_features: int = 16,
        mask: MaskMaker | None = None,
        explicit: bool = False,
        cached: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        path: Literal["auto", "explicit", "product"] = "product",
    ):
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            as_count(value, name, least=1)
        as_count(heads, "heads", least=1)
        if dropout and not explicit:
            raise ValueError(
                f"dropout of attention weights needs explicit=True, got dropout={dropout}: linear "
                "attention has no weights to drop; drop features of x instead"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.heads, self.concat, self.explicit = heads, concat, explicit
        self.make_mask = as_maker(mask)
        self.cached, self.dropout = cached, dropout
        self.path: Literal["auto", "explicit", "product"] = path
        self._mask: Mask | None = None
        self._recent = RecentMasks()
        self.features = _feature_map(feature_map, out_channels, num_features)
        self.additive = isinstance(self.features, AdditiveFeatures)
        width = heads * out_channels
        self.value = nn.Linear(in_channels, width, bias=False)
        if self.additive:
            self.to_query = nn.Parameter(torch.empty(heads, out_channels))
            self.to_key = nn.Parameter(torch.empty(heads, out_channels))
        else:
            self.query = nn.Linear(in_channels, width, bias=False)
            self.key = nn.Linear(in_channels, width, bias=False)
        self.bias = nn.Parameter(torch.empty(width if concat else out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights; a feature map with `reset_parameters` of its own gets them, too."""
        self._mask, self._recent = None, RecentMasks()
        if self.additive:
            weights = [self.to_query, self.to_key, self.value.weight]
        else:
            weights = [self.value.weight, self.query.weight, self.key.weight]
        for weight in weights:
            nn.init.xavier_uniform_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        reset_features = getattr(self.features, "reset_parameters", None)
        if reset_features is not None:
            reset_features()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """(L, in_channels) -> (L, heads * out_channels), or (L, out_channels) without concat."""
        if x.ndim != 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"GKATConv needs x of shape (nodes, {self.in_channels}), got {tuple(x.shape)}"
            )
        if len(x) == 0:  # a batch of empty graphs
            out = self.value(x).unflatten(-1, (self.heads, -1))
        else:
            mask = self.mask_of(x, edge_index, edge_weight, mask)
            q, k, v = self.queries_keys_values(x)
            attend = self._explicit if self.explicit else self._linear
            out = attend(q, k, v, mask).movedim(0, 1)
        out = out.flatten(1) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias

    def mask_of(
        self, x: Tensor, edge_index: Tensor | None, edge_weight: Tensor | None, mask: Mask | None
    ) -> Mask:
        """The mask that is given, else that which was kept, else a new one of this graph."""
        if mask is None:
            mask = self._mask
        if mask is None:
            if edge_index is None:
                raise ValueError("GKATConv needs edge_index, or a mask made before")
            as_graph(edge_index, len(x), edge_weight, undirected=False, learnable=not self.cached)
            mask = self._make_mask(edge_index, len(x), edge_weight)
        if mask.length != len(x):
            raise ValueError(f"x has {len(x)} nodes, but its mask has {mask.length}")
        return mask

    def _make_mask(self, edge_index: Tensor, n: int, edge_weight: Tensor | None) -> Mask:
        make = self.make_mask
        if self.cached:
            self._mask = make(edge_index, n, edge_weight)
            return self._mask
        if not isinstance(make, RandomWalkMask):
            return make(edge_index, n, edge_weight)
        if self.training:
            return make.redrawn()(edge_index, n, edge_weight)
        return self._recent.mask(make, edge_index, n, edge_weight)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(H, L, D) each; queries and keys of the additive form are numbers, (H, L, 1)."""
        v = self._heads(self.value(x))
        if self.additive:
            return v @ self.to_query[..., None], v @ self.to_key[..., None], v
        return self._heads(self.query(x)), self._heads(self.key(x)), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).movedim(1, 0)

    def _linear(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        phi_q, phi_k = self.query_key_features(q, k, mask)
        # whole cache lines of columns, even where one column is large
        least = _BLOCK * _LIVE * v.element_size() * v.shape[0] * v.shape[1]
        budget = max(64 << 20, least)
        wide_range = self.features.wide_range
        return masked_linear_attention(
            phi_q, phi_k, v, mask, path=self.path, budget=budget, wide_range=wide_range
        )

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """GKAT-0: the L x L matrix, by brute force."""
        weights = self.kernel(q, k, mask)
        weights = weights * mask.dense().to(weights.dtype)
        absolute = weights.detach().abs().sum(-1, keepdim=True)
        weights = weights / safe_denominator(weights.sum(-1, keepdim=True), absolute)
        return nn.functional.dropout(weights.to(v.dtype), self.dropout, self.training) @ v

    def query_key_features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """phi(q) and phi(k), (H, L, M) each, up to factors that cancel under this mask."""
        features = self.features
        if isinstance(features, AdditiveFeatures):
            q, k = features.leveled(q, k, mask)
        phi_q, phi_k = features(q, k)
        if isinstance(features, PositiveRandomFeatures) and (phi_k.amax(-1) < _FAINT).any():
            # a key that float32 cannot hold at the scale of all others, perhaps of other graphs
            q, k = features.prepare(q.double()), features.prepare(k.double())
            return features.query(q), features.key(k, parts=mask.components())
        return phi_q, phi_k

    def kernel(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """K for all pairs that the mask joins, up to a factor for each query: (H, L, L)."""
        if isinstance(self.features, PositiveRandomFeatures):
            q, k = (self.features.prepare(x) * self.features.scale for x in (q, k))
            logits = q @ k.mT
            return (logits - logits.detach().amax(-1, keepdim=True)).exp()
        phi_q, phi_k = self.query_key_features(q, k, mask)
        return phi_q @ phi_k.mT

    def edge_attention(self, x: Tensor, edge_index: Tensor, mask: WalkKernel) -> Tensor:
        """M[i, j] K(q_i, k_j) at the edges (i, j) alone, (H, E), up to a factor for each i. O(E).

        Without gradients: probabilities of walks are made of it.
        """
        with torch.no_grad():
            q, k, _ = self.queries_keys_values(x)
            phi_q, phi_k = self.query_key_features(q, k, mask)
            kernel = _edge_dots(phi_q, phi_k, edge_index)
            return kernel * mask.at(edge_index[0], edge_index[1]).to(kernel.dtype)

    def extra_repr(self) -> str:
        form = ", explicit=True" if self.explicit else ""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}{form}"


def _edge_dots(phi_q: Tensor, phi_k: Tensor, edge_index: Tensor) -> Tensor:
    """phi(q_i) . phi(k_j) for edges (i, j), some at a time: (H, E)."""
    step = max(1, (1 << 24) // (phi_q.shape[0] * phi_q.shape[-1]))
    parts = [(phi_q[:, i] * phi_k[:, j]).sum(-1) for i, j in (e for e in edge_index.split(step, 1))]
    return torch.cat(parts, -1)


def _feature_map(choice: str | FeatureMap, head_dim: int, num_features: int) -> FeatureMap:
    if isinstance(choice, FeatureMap):
        return choice
    if choice == "softmax":
        return PositiveRandomFeatures(head_dim, num_features)
    makers = {
        "relu": ReLUFeatures,
        "elu": ELUFeatures,
        "square": SquareFeatures,
        "additive": AdditiveFeatures,
    }
    if choice not in makers:
        raise ValueError(f"feature_map must be one of {', '.join(FEATURE_MAPS)}, got {choice!r}")
    return makers[choice]()
