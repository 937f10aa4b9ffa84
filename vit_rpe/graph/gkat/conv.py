"""The layer of GKAT: masked linear attention between the nodes of a graph (paper, Sec. 4.2).

Shapes: L nodes, E edges, H heads, D channels of a head.
"""

from __future__ import annotations

from math import log
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from vit_rpe.attention import PathName
from vit_rpe.features import AdditiveFeatures, FeatureMap, is_random, make_features
from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import as_count

from ..base import GraphMask
from ..edges import Graph, as_graph
from ..walks.kernel import RWGNK
from .attention import EXACT_NODES, KernelAttention
from .makers import DiffusionKernel, MaskMaker, RecentMasks, as_maker
from .projection import projection

AttentionWeights = tuple[Tensor, Tensor]
"""Edges (2, E), and the weights of their source nodes in the results of their targets (E, H)."""


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

    On large graphs the L x L matrix is never formed: O(visits M D) for random walks, Algorithm 1 of
    the paper. Graphs of at most 512 nodes, alone or in a batch, have the exact softmax kernel, by a
    matrix for each; for the other kernels, which are exact anyway, the cheaper way is taken.

    Args:
        in_channels, out_channels, heads, concat, residual, bias: as in PyG's `GATConv`;
            `out_channels` is D. in_channels=-1: those of the first x.
        feature_map, num_features: see the table; `num_features` counts only for random ones.
        mask: "rwgnk", "diffusion", or what makes a mask from a graph: `RWGNK(num_walks=100)`,
            `DiffusionKernel(lam=0.5)`, or a function. A mask that is given to `forward` is used
            instead; a batch of graphs is one graph of several components.
        learn_lam: learn the mask's lam for each head, positive; it begins as the mask's own.
        resample: draw the walks of an `RWGNK` again in each forward pass in training, from torch's
            generator, or from a `torch.Generator` that is given here. In evaluation, and with
            False always, they are those of its seed, and the last graphs are not walked again.
        cached: keep the mask of the first graph, for training on one graph; its walks are those
            of the seed.
        exact_kernel: True: always form matrices (GKAT-0); False: never, by random features;
            None: where graphs are small.
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
        mask: MaskMaker | Literal["rwgnk", "diffusion"] | None = None,
        learn_lam: bool = False,
        resample: bool | torch.Generator = True,
        cached: bool = False,
        exact_kernel: bool | None = None,
        dropout: float = 0.0,
        residual: bool = False,
        bias: bool = True,
        path: PathName = "auto",
    ):
        super().__init__()
        self._check(in_channels, out_channels, heads, dropout, exact_kernel)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.heads, self.concat = heads, concat
        self.make_mask = as_maker(mask)
        self.cached, self.resample = cached, resample
        self._mask: Mask | None = None
        self._recent = RecentMasks()
        self.feature_map = feature_map if isinstance(feature_map, str) else None
        if isinstance(feature_map, str):
            count = num_features if is_random(feature_map) else None
            feature_map = make_features(feature_map, out_channels, count, additive=True)
        self.features = feature_map
        self.additive = isinstance(self.features, AdditiveFeatures)
        self.exact_kernel, self.dropout = exact_kernel, dropout
        self.path: PathName = path
        width = heads * out_channels
        self.value = projection(in_channels, width)
        if self.additive:
            self.to_query = nn.Parameter(torch.empty(heads, out_channels))
            self.to_key = nn.Parameter(torch.empty(heads, out_channels))
        else:
            self.query = projection(in_channels, width)
            self.key = projection(in_channels, width)
        total = width if concat else out_channels
        self.res = projection(in_channels, total) if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.log_lam = nn.Parameter(torch.empty(heads)) if learn_lam else None
        self.reset_parameters()

    @property
    def attention(self) -> KernelAttention:
        """How this layer attends, whatever the mask."""
        return KernelAttention(self.features, self.exact_kernel, self.dropout, self.path)

    @staticmethod
    def _check(
        in_channels: int, out_channels: int, heads: int, dropout: float, exact: bool | None
    ) -> None:
        if isinstance(in_channels, tuple):
            raise ValueError(f"in_channels must be a number, got {in_channels}: {_NOT_BIPARTITE}")
        if in_channels != -1:
            as_count(in_channels, "in_channels", least=1)
        as_count(out_channels, "out_channels", least=1)
        as_count(heads, "heads", least=1)
        if dropout and not exact:
            raise ValueError(
                f"dropout of attention weights needs exact_kernel=True, got dropout={dropout}: "
                "linear attention has no weights to drop; drop features of x instead"
            )

    def reset_parameters(self) -> None:
        """Draw new weights, also those of a feature map that has `reset_parameters`."""
        self._mask, self._recent = None, RecentMasks()
        if self.additive:
            nn.init.xavier_uniform_(self.to_query)
            nn.init.xavier_uniform_(self.to_key)
            self.value.reset_parameters()
        else:
            for part in (self.value, self.query, self.key):
                part.reset_parameters()
        if self.res is not None:
            self.res.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.log_lam is not None:
            nn.init.constant_(self.log_lam, self._first_log_lam())
        reset_features = getattr(self.features, "reset_parameters", None)
        if reset_features is not None:
            reset_features()

    def _first_log_lam(self) -> float:
        lam = getattr(self.make_mask, "lam", 1.0)
        if not lam > 0:
            raise ValueError(f"learn_lam learns a positive lam, and the mask begins with {lam}")
        return log(lam)

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Any = ...,
        edge_weight: Tensor | None = ...,
        *,
        batch: Tensor | None = ...,
        mask: Mask | None = ...,
        return_attention_weights: None = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Any = ...,
        edge_weight: Tensor | None = ...,
        *,
        batch: Tensor | None = ...,
        mask: Mask | None = ...,
        return_attention_weights: bool,
    ) -> Any: ...

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """Map (L, in_channels) to (L, heads * out_channels), or (L, out_channels) without concat.

        Args:
            edge_index, edge_weight: the graph, in PyG's format; or a sparse adj_t. Walks follow the
                direction of edges; weights say how likely they take one, and get no gradient.
            batch: which graph each node is in, (L,). The mask of a batch joins no nodes of
                different graphs, so this only says early which matrices are to be formed.
            mask: in the place of the layer's own; edges are then not looked at.
            return_attention_weights: return (out, (edge_index, alpha)), as PyG does: alpha (E, H)
                are the weights of the source nodes in the results of the targets. Attention is not
                limited to edges, so these need not sum to 1.
        """
        if isinstance(x, tuple | list):
            raise ValueError(f"GKATConv got x as a {type(x).__name__}: {_NOT_BIPARTITE}")
        if x.ndim != 2 or (self.in_channels not in (-1, x.shape[1])):
            wanted = "channels" if self.in_channels == -1 else self.in_channels
            raise ValueError(f"GKATConv needs x of shape (nodes, {wanted}), got {tuple(x.shape)}")
        self.in_channels = x.shape[1]
        if batch is not None and tuple(batch.shape) != (len(x),):
            raise ValueError(
                f"{len(x)} nodes need batch of shape ({len(x)},), got {tuple(batch.shape)}"
            )
        if return_attention_weights and edge_index is None:
            raise ValueError("return_attention_weights needs edge_index, besides a mask")
        q, k, v = self.queries_keys_values(x)
        if len(x) == 0:  # a batch of empty graphs
            result, mask = v, None
        else:
            mask = self.mask_of(x, edge_index, edge_weight, batch=batch, mask=mask)
            mask = self._with_lam(mask)
            result = self.attention(q, k, v, mask, self.training)
        result = result.movedim(0, 1)
        result = result.flatten(1) if self.concat else result.mean(1)
        if self.res is not None:
            result = result + self.res(x)
        if self.bias is not None:
            result = result + self.bias
        if not return_attention_weights:
            return result
        if mask is None:
            return result, (x.new_empty(2, 0, dtype=torch.int64), x.new_empty(0, self.heads))
        edges = as_graph(edge_index, num_nodes=len(x), undirected=False).edge_index
        return result, (edges, self.attention.shares(q, k, mask, edges[1], edges[0]).mT)

    def mask_of(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Mask:
        """Return the given mask, else the cached one, else a new one, with its parts if known."""
        given = self._mask if mask is None else mask
        if given is None:
            if edge_index is None:
                raise ValueError("GKATConv needs edge_index, or a mask made before")
            graph = as_graph(
                edge_index, edge_weight, num_nodes=len(x),
                undirected=False, learnable=not self.cached,
            )  # fmt: skip
            given = self._make_mask(graph)
        elif edge_weight is not None and edge_weight.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "edge_weight requires a gradient, but the mask was made before, and passes none to "
                "it: detach it, or leave the mask to the layer"
            )
        if given.length != len(x):
            raise ValueError(f"x has {len(x)} nodes, but its mask has {given.length}")
        return _in_parts(given, batch)

    def _make_mask(self, graph: Graph) -> Mask:
        make = self.make_mask
        if isinstance(make, RWGNK | DiffusionKernel) and not self.cached:
            if isinstance(make, RWGNK) and self.training and self.resample is not False:
                generator = self.resample if isinstance(self.resample, torch.Generator) else None
                return make.redrawn(generator)(graph)
            return self._recent.mask(make, graph)
        if isinstance(make, RWGNK | DiffusionKernel):
            mask: Mask = make(graph)
        else:  # a user's function gets tensors
            mask = make(graph.edge_index, graph.edge_weight, num_nodes=graph.num_nodes)
        if self.cached:
            self._mask = mask
        return mask

    def _with_lam(self, mask: Mask) -> Mask:
        """Put the learned lam of each head into a mask; it is positive, and so are the entries."""
        if self.log_lam is None:
            return mask
        if not isinstance(mask, GraphMask) or "lam" not in mask.tensor_names:
            raise ValueError(f"learn_lam needs a mask with a lam, got a {type(mask).__name__}")
        learned = mask.with_values(lam=self.log_lam.exp())
        learned.nonnegative = True
        return learned

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x to (H, L, D) each; queries and keys of the additive form are (H, L, 1)."""
        v = self._heads(self.value(x))
        if self.additive:
            return v @ self.to_query[..., None], v @ self.to_key[..., None], v
        return self._heads(self.query(x)), self._heads(self.key(x)), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).movedim(1, 0)

    def edge_attention(self, x: Tensor, edge_index: Tensor, mask: Mask) -> Tensor:
        """Compute M[i, j] K(q_i, k_j) at the edges (i, j), (H, E), up to a factor for each i.

        It has no gradients: walks, which go from i to j, take their probabilities from it.
        """
        with torch.no_grad():
            q, k, _ = self.queries_keys_values(x)
            mask = self._with_lam(_in_parts(mask, None))
            return self.attention.at(q, k, mask, edge_index[0], edge_index[1])

    def __repr__(self) -> str:
        kernel = "" if self.feature_map == "softmax" else f", {self.feature_map or self.features}"
        exact = ", exact_kernel=True" if self.exact_kernel else ""
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"heads={self.heads}{kernel}{exact})"
        )


_NOT_BIPARTITE = (
    "masks are for the nodes of one graph, not for bipartite ones (sources, targets); make it one "
    "graph (HeteroData.to_homogeneous), or use GATConv there"
)


def _in_parts(mask: Mask, batch: Tensor | None) -> Mask:
    """Return a mask with its parts: those of a sorted batch, else those that its graph shows."""
    if mask.part_sizes is not None:
        return mask
    if batch is not None and not bool((batch.diff() < 0).any()):
        return mask.in_parts(torch.unique_consecutive(batch, return_counts=True)[1].tolist())
    if isinstance(mask, GraphMask):
        mask = mask.known_parts()
    if mask.part_sizes is None and mask.length <= EXACT_NODES:
        return mask.in_parts([mask.length])
    return mask
