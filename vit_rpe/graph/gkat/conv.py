"""The layer of GKAT: masked linear attention between the nodes of a graph (paper, Sec. 4.2).

Shapes: L nodes, E edges, H heads, D channels of a head, M features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from vit_rpe.attention import budget_for, default_budget, masked_linear_attention, safe_denominator
from vit_rpe.features import (
    AdditiveFeatures,
    FeatureMap,
    PositiveRandomFeatures,
    is_random,
    make_features,
)
from vit_rpe.masks import Dense, Mask
from vit_rpe.masks.helpers import as_count

from ..edges import Graph, as_graph
from ..walks.kernel import RandomWalkMask, WalkKernel
from .makers import MaskMaker, RecentMasks, as_maker

_LEAST_COLUMNS = 17  # of Algorithm 1 that are multiplied at a time
_SMALLEST_FEATURE = 1e-30  # features below this may have lost digits


class GKATConv(nn.Module):
    """Attention of every node to all nodes of its graph, weighted by a mask made from the graph.

        out_i = sum_j M[i, j] K(q_i, k_j) v_j  /  sum_j M[i, j] K(q_i, k_j)

    for each head, with q, k, v linear in x, and K one of

    | `feature_map` | K(q, k) | features M |
    |---|---|---|
    | `softmax` (`favor`), `favor_hyperbolic` | exp(q . k / sqrt D) | `num_features`, random |
    | `relu`, `elu`, `square` | phi(q) . phi(k), channel by channel | D |
    | `additive` | exp(z) + exp(slope z), z = a . q + b . k: as in GAT | 2 |
    | a `FeatureMap` | its own | its own |

    The L x L matrix is never formed: O(visits M D) for random walks, Algorithm 1 of the paper.
    `exact_kernel=True` is GKAT-0, which forms it, with the exact softmax kernel.

    Args:
        in_channels, out_channels, heads, concat, bias: as in PyG's `GATConv`; `out_channels` is D.
        feature_map, num_features: see the table; `num_features` counts only for random ones.
        mask: makes a mask from a graph, by default RWGNK. A mask that is given to `forward` is used
            instead; a batch of graphs is one graph of several components. In training, the walks
            of a `RandomWalkMask` are drawn again in each forward pass, from torch's generator; in
            evaluation they are those of its seed, and the last graphs are not walked again.
        exact_kernel: form the attention matrix (GKAT-0).
        cached: keep the mask of the first graph, for training on one graph; its walks are those
            of the seed.
        dropout: of attention weights; only with `exact_kernel=True`, there are none otherwise.
        path: of `masked_linear_attention`.
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
        exact_kernel: bool = False,
        cached: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        path: Literal["auto", "explicit", "product"] = "product",
    ):
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            as_count(value, name, least=1)
        as_count(heads, "heads", least=1)
        if dropout and not exact_kernel:
            raise ValueError(
                f"dropout of attention weights needs exact_kernel=True, got dropout={dropout}: "
                "linear attention has no weights to drop; drop features of x instead"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.heads, self.concat, self.exact_kernel = heads, concat, exact_kernel
        self.make_mask = as_maker(mask)
        self.cached, self.dropout = cached, dropout
        self.path: Literal["auto", "explicit", "product"] = path
        self._mask: Mask | None = None
        self._recent = RecentMasks()
        if isinstance(feature_map, str):
            count = num_features if is_random(feature_map) else None
            feature_map = make_features(feature_map, out_channels, count, additive=True)
        self.features = feature_map
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
        """Draw new weights, also those of a feature map that has `reset_parameters`."""
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
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Map (L, in_channels) to (L, heads * out_channels), or (L, out_channels) without concat.

        `batch` (L,) says which graph each node is in. The mask of a batch joins no nodes of
        different graphs, so this changes only the work of the exact kernel: if `batch` is sorted,
        as PyG's is, it forms one matrix for each graph.
        """
        if x.ndim != 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"GKATConv needs x of shape (nodes, {self.in_channels}), got {tuple(x.shape)}"
            )
        if len(x) == 0:  # a batch of empty graphs
            out = self.value(x).unflatten(-1, (self.heads, -1))
        else:
            mask = self.mask_of(x, edge_index, edge_weight, mask=mask)
            q, k, v = self.queries_keys_values(x)
            if self.exact_kernel:
                out = self._exact(q, k, v, mask, _sizes(batch, len(x)))
            else:
                out = self._linear(q, k, v, mask)
            out = out.movedim(0, 1)
        out = out.flatten(1) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias

    def mask_of(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        *,
        mask: Mask | None = None,
    ) -> Mask:
        """Return the given mask, else the cached one, else a new one."""
        if mask is None:
            mask = self._mask
        if mask is None:
            if edge_index is None:
                raise ValueError("GKATConv needs edge_index, or a mask made before")
            graph = as_graph(
                edge_index, edge_weight, num_nodes=len(x),
                undirected=False, learnable=not self.cached,
            )  # fmt: skip
            mask = self._make_mask(graph)
        if mask.length != len(x):
            raise ValueError(f"x has {len(x)} nodes, but its mask has {mask.length}")
        return mask

    def _make_mask(self, graph: Graph) -> Mask:
        make = self.make_mask
        if isinstance(make, RandomWalkMask) and not self.cached:
            return make.redrawn()(graph) if self.training else self._recent.mask(make, graph)
        if isinstance(make, RandomWalkMask):
            mask: Mask = make(graph)
        else:  # a user's function gets tensors
            mask = make(graph.edge_index, graph.edge_weight, num_nodes=graph.num_nodes)
        if self.cached:
            self._mask = mask
        return mask

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x to (H, L, D) each; queries and keys of the additive form are (H, L, 1)."""
        v = self._heads(self.value(x))
        if self.additive:
            return v @ self.to_query[..., None], v @ self.to_key[..., None], v
        return self._heads(self.query(x)), self._heads(self.key(x)), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).movedim(1, 0)

    def _linear(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        phi_q, phi_k = self.query_key_features(q, k, mask)
        wide_range = self.features.wide_range
        return masked_linear_attention(
            phi_q, phi_k, v, mask, path=self.path, budget=_budget(v), wide_range=wide_range
        )

    def _exact(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, sizes: list[int]) -> Tensor:
        """Compute GKAT-0: the matrix of each graph, by brute force."""
        if len(sizes) == 1:
            return self._weighted(self.kernel(q, k, mask), mask.dense(), v)
        parts, stop = [], 0
        for size in sizes:
            start, stop = stop, stop + size
            nodes = slice(start, stop)
            block = Dense(mask.rows(start, stop)[..., nodes])
            kernel = self.kernel(q[:, nodes], k[:, nodes], block)
            parts.append(self._weighted(kernel, block.dense(), v[:, nodes]))
        return torch.cat(parts, -2)

    def _weighted(self, kernel: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        weights = kernel * mask.to(kernel.dtype)
        absolute = weights.detach().abs().sum(-1, keepdim=True)
        weights = weights / safe_denominator(weights.sum(-1, keepdim=True), absolute)
        return nn.functional.dropout(weights.to(v.dtype), self.dropout, self.training) @ v

    def query_key_features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Compute phi(q) and phi(k), (H, L, M) each, up to factors that cancel under this mask."""
        features = self.features
        if isinstance(features, AdditiveFeatures):
            q, k = features.leveled(q, k, mask.components)
        phi_q, phi_k = features(q, k)
        if (
            isinstance(features, PositiveRandomFeatures)
            and (phi_k.amax(-1) < _SMALLEST_FEATURE).any()
        ):
            # a key that float32 cannot hold at the scale of all others, perhaps of other graphs
            q, k = features.cast_and_normalize(q.double()), features.cast_and_normalize(k.double())
            return features.query(q), features.key(k, parts=mask.components())
        return phi_q, phi_k

    def kernel(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Compute K for all pairs that the mask joins, up to a factor for each query: (H, L, L)."""
        if isinstance(self.features, PositiveRandomFeatures):
            q, k = (self.features.cast_and_normalize(x) * self.features.scale for x in (q, k))
            logits = q @ k.mT
            return (logits - logits.detach().amax(-1, keepdim=True)).exp()
        phi_q, phi_k = self.query_key_features(q, k, mask)
        return phi_q @ phi_k.mT

    def edge_attention(self, x: Tensor, edge_index: Tensor, mask: WalkKernel) -> Tensor:
        """Compute M[i, j] K(q_i, k_j) at the edges (i, j), (H, E), up to a factor for each i. O(E).

        It has no gradients: walks take their probabilities from it.
        """
        with torch.no_grad():
            q, k, _ = self.queries_keys_values(x)
            phi_q, phi_k = self.query_key_features(q, k, mask)
            kernel = _edge_dots(phi_q, phi_k, edge_index)
            return kernel * mask.at(edge_index[0], edge_index[1]).to(kernel.dtype)

    def extra_repr(self) -> str:
        form = ", exact_kernel=True" if self.exact_kernel else ""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}{form}"


def _edge_dots(phi_q: Tensor, phi_k: Tensor, edge_index: Tensor) -> Tensor:
    """Compute phi(q_i) . phi(k_j) for edges (i, j), some at a time: (H, E)."""
    step = max(1, (1 << 24) // (phi_q.shape[0] * phi_q.shape[-1]))
    parts = [(phi_q[:, i] * phi_k[:, j]).sum(-1) for i, j in edge_index.split(step, 1)]
    return torch.cat(parts, -1)


def _sizes(batch: Tensor | None, nodes: int) -> list[int]:
    """Count the nodes of each graph of a sorted batch, without graphs that have none."""
    if batch is None:
        return [nodes]
    if tuple(batch.shape) != (nodes,):
        raise ValueError(f"{nodes} nodes need batch of shape ({nodes},), got {tuple(batch.shape)}")
    if (batch.diff() < 0).any():  # the nodes of a graph are not adjacent
        return [nodes]
    return torch.unique_consecutive(batch, return_counts=True)[1].tolist()


def _budget(v: Tensor) -> int:
    """Return bytes for at least `_LEAST_COLUMNS` columns: whole cache lines, even if long."""
    usual = default_budget("product", v.device.type, v.shape[-2], v.dtype)
    return max(usual, budget_for(_LEAST_COLUMNS, v))
