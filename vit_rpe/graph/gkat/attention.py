"""How GKATConv attends: by features of its kernel, or exactly, part by part.

Shapes: L nodes, H heads, D channels of a head, M features, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from vit_rpe.attention import (
    PathName,
    budget_for,
    default_budget,
    masked_linear_attention,
    masked_softmax_attention,
    safe_denominator,
)
from vit_rpe.features import AdditiveFeatures, FeatureMap, PositiveRandomFeatures
from vit_rpe.masks import ChosenParts, Mask
from vit_rpe.precision import to_float64

EXACT_NODES = 512
"""Graphs of at most so many nodes have the exact softmax kernel, unless a layer says otherwise."""

_LEAST_COLUMNS = 17  # of Algorithm 1 that are multiplied at a time
_SMALLEST_FEATURE = 1e-30  # features below this may have lost digits


class _Mapped(FeatureMap):
    """Queries and keys that are mapped already, with what the map promises of them."""

    def __init__(self, features: FeatureMap):
        super().__init__()
        self.nonnegative, self.wide_range = features.nonnegative, features.wide_range

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def query(self, q: Tensor) -> Tensor:
        return q

    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        return k if keep is None else k.masked_fill(~keep[..., None], 0.0)


@dataclass(frozen=True)
class KernelAttention:
    """Attention by one kernel K, given as a feature map, under any mask.

    The kernel of random features is that of softmax, exp(q . k scale^2), which can be exact.
    """

    features: FeatureMap
    exact: bool | None
    dropout: float
    path: PathName

    @property
    def softmax(self) -> PositiveRandomFeatures | None:
        """The random features that stand for the softmax kernel, if these are it."""
        return self.features if isinstance(self.features, PositiveRandomFeatures) else None

    def exact_parts(self, mask: Mask) -> bool | tuple[int, ...]:
        """Whether matrices are formed: True, False, or the numbers of the parts that have them.

        By default small parts have the softmax kernel, whatever the size of the others.
        """
        if self.exact is not None:
            return self.exact
        if self.softmax is None or not mask.nonnegative or mask.part_sizes is None:
            return False
        small = tuple(i for i, size in enumerate(mask.part_sizes) if size <= EXACT_NODES)
        return len(small) == len(mask.part_sizes) or (small if small else False)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, training: bool) -> Tensor:
        """Attend: (H, L, D) in v's dtype."""
        p = self.dropout if training else 0.0
        exact = self.exact_parts(mask)
        if exact is True and self.softmax is not None:
            return self._softmax(q, k, v, mask, p)
        out = self._linear(q, k, v, mask, p, exact is True)
        if isinstance(exact, bool):
            return out
        small = _chosen(mask, exact)
        q, k, v = (x.index_select(-2, small.index) for x in (q, k, v))
        return out.index_copy(-2, small.index, self._softmax(q, k, v, small, p))

    def _linear(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, exact: bool
    ) -> Tensor:
        phi_q, phi_k = self.query_key_features(q, k, mask)
        path: PathName = "explicit" if exact else self.path
        budget = None if exact else _budget(v)
        return masked_linear_attention(
            phi_q, phi_k, v, mask,
            features=_Mapped(self.features), path=path, dropout=dropout, budget=budget,
        )  # fmt: skip

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        assert self.softmax is not None
        if not mask.nonnegative:
            return self._by_definition(q, k, v, mask, dropout)
        q, k = (self.softmax.cast_and_normalize(x) for x in (q, k))
        scale = self.softmax.scale**2
        return masked_softmax_attention(q, k, v, mask, scale=scale, dropout=dropout)

    def _by_definition(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend by the whole matrix: entries of the mask may be negative."""
        kernel = self.kernel(q, k, mask)
        weights = kernel * mask.dense().to(kernel.dtype)
        absolute = weights.detach().abs().sum(-1, keepdim=True)
        weights = weights / safe_denominator(weights.sum(-1, keepdim=True), absolute)
        return drop(weights.to(v.dtype), dropout) @ v

    def query_key_features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Compute phi(q) and phi(k), (H, L, M) each, up to factors that cancel under this mask."""
        features = self.features
        if isinstance(features, AdditiveFeatures):
            q, k = features.leveled(q, k, mask.components)
        phi_q, phi_k = features(q, k)
        if self.softmax is not None and (phi_k.amax(-1) < _SMALLEST_FEATURE).any():
            # a key that float32 cannot hold at the scale of all others, perhaps of other graphs
            q, k = (self.softmax.cast_and_normalize(to_float64(x)) for x in (q, k))
            return self.softmax.query(q), self.softmax.key(k, parts=mask.components())
        return phi_q, phi_k

    def kernel(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Compute K for all pairs that the mask joins, up to a factor for each query: (H, L, L)."""
        if self.softmax is not None:
            q, k = (self.softmax.cast_and_normalize(x) * self.softmax.scale for x in (q, k))
            logits = q @ k.mT
            return (logits - logits.detach().amax(-1, keepdim=True)).exp()
        phi_q, phi_k = self.query_key_features(q, k, mask)
        return phi_q @ phi_k.mT

    def at(self, q: Tensor, k: Tensor, mask: Mask, query: Tensor, key: Tensor) -> Tensor:
        """Compute M[i, j] K(q_i, k_j) for pairs of nodes, up to a factor for each i: (H, E)."""
        weights, _ = self._weights(q, k, mask, query, key)
        return weights

    def shares(self, q: Tensor, k: Tensor, mask: Mask, query: Tensor, key: Tensor) -> Tensor:
        """Compute the weight that node j has in the result of node i, for pairs (i, j): (H, E)."""
        weights, totals = self._weights(q, k, mask, query, key)
        return weights / totals[:, query]

    def _weights(
        self, q: Tensor, k: Tensor, mask: Mask, query: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute weights of pairs, and the sums of all weights of each node: (H, E), (H, L)."""
        exact = self.exact_parts(mask)
        entries = mask.at(query, key)
        if exact is True and self.softmax is not None:
            return self._softmax_weights(q, k, mask, entries, query, key)
        phi_q, phi_k = self.query_key_features(q, k, mask)
        weights = _dots(phi_q, phi_k, query, key) * entries.to(phi_q.dtype)
        totals = (phi_q * mask.matmul(phi_k)).sum(-1)
        absolute = (phi_q.abs() * mask.abs_bound().matmul(phi_k.abs())).sum(-1).detach()
        totals = safe_denominator(totals, absolute)
        if isinstance(exact, bool):
            return weights, totals
        small = _chosen(mask, exact)
        place = torch.full_like(small.index.new_empty(mask.length), -1)
        place[small.index] = torch.arange(small.length, device=place.device)
        pairs = (place[query] >= 0).nonzero().squeeze(-1)
        q, k = (x.index_select(-2, small.index) for x in (q, k))
        query, key = (place[end[pairs]] for end in (query, key))
        own_weights, own_totals = self._softmax_weights(
            q, k, small, entries[..., pairs], query, key
        )
        weights = weights.index_copy(-1, pairs, own_weights.to(weights.dtype))
        return weights, totals.index_copy(-1, small.index, own_totals.to(totals.dtype))

    def _softmax_weights(
        self, q: Tensor, k: Tensor, mask: Mask, entries: Tensor, query: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum the rows of the matrix of each part."""
        assert self.softmax is not None
        q, k = (self.softmax.cast_and_normalize(x) * self.softmax.scale for x in (q, k))
        totals, largest, start = [], [], 0
        for size in mask.part_sizes or (mask.length,):
            part = slice(start, start + size)
            logits = q[:, part] @ k[:, part].mT
            largest.append(logits.detach().amax(-1))
            weights = (logits - largest[-1][..., None]).exp()
            totals.append((weights * mask.rows(start, start + size)[..., part].to(q.dtype)).sum(-1))
            start += size
        total, most = (torch.cat(x, -1) for x in (totals, largest))
        weights = (_dots(q, k, query, key) - most[:, query]).exp() * entries.to(q.dtype)
        return weights, safe_denominator(total, total.detach().abs())


def _chosen(mask: Mask, numbers: tuple[int, ...]) -> ChosenParts:
    """Return some parts of a mask, which keeps them."""
    kept = mask.computed()
    key = "parts", mask.part_sizes, numbers
    if key not in kept:
        kept[key] = ChosenParts(mask, numbers)
    return kept[key]


def _dots(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Compute q_i . k_j for pairs (i, j), some at a time: (H, E)."""
    step = max(1, (1 << 24) // (q.shape[0] * q.shape[-1]))
    pairs = zip(query.split(step), key.split(step), strict=True)
    parts = [(q[:, i] * k[:, j]).sum(-1) for i, j in pairs]
    return torch.cat(parts, -1)


def _budget(v: Tensor) -> int:
    """Return bytes for at least `_LEAST_COLUMNS` columns: whole cache lines, even if long."""
    usual = default_budget("product", v.device.type, v.shape[-2], v.dtype)
    return max(usual, budget_for(_LEAST_COLUMNS, v))
