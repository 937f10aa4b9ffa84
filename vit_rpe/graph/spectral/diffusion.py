"""Graph diffusion kernels as masks (paper, Sec. 4, Eq. (4), Theorem 4.1).

Shapes: L nodes, H heads, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from vit_rpe.masks import Mask, Ones, Scaled
from vit_rpe.masks.helpers import Folded, as_values, check_columns, check_rows
from vit_rpe.precision import full_precision

from ..base import GraphMask
from ..edges import Graph, as_graph
from .operator import KINDS, Operator


class Diffusion(GraphMask):
    """A diffusion kernel `M = exp(-lam T)`: heat that has spread along the edges for a time lam.

    | kind | T | |
    |---|---|---|
    | `laplacian` | L = D - Adj | rows and columns sum to 1 |
    | `normalized` | L D^-1 | columns sum to 1: walks of Poisson(lam) many steps |
    | `adjacency` | -Adj | walks of length k, weighed by lam^k / k! |

    `lam` is a number or a tensor (...), one per head, learnable; the larger it is, the flatter the
    kernel. Isolated nodes keep what they have; a self-loop counts once in Adj and D, parallel
    edges add up. A batch of graphs is one graph of several components, as in PyG.

    The product is a Chebyshev expansion of sparse products: about sqrt(lam |T| log(1 / tol)) of
    them, O(edges + L) each. Its error is at most `tol |exp(-lam T)| |x|` (2-norms, for each
    column), in addition to the round-off of x's own precision. L D^-1 is not symmetric, and is
    handled as D^(1/2) (D^(-1/2) L D^(-1/2)) D^(-1/2).
    """

    normwise = True
    tensor_names = ("lam",)

    def __init__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        lam: float | Tensor = 1.0,
        kind: str = "laplacian",
        tol: float = 1e-8,
        nonnegative: bool = False,
    ):
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if not isinstance(tol, int | float) or not 1e-16 <= tol < 1:
            raise ValueError(f"tol must be at least 1e-16 and less than 1, got {tol!r}")
        graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes)
        self.length = graph.num_nodes
        self.kind = kind
        self.tol = tol
        self.roundoff = tol
        self.lam = as_values(lam, "lam")
        self.nonnegative = nonnegative
        self.operator = Operator(graph, KINDS[kind])

    @property
    def batch_shape(self) -> torch.Size:
        return self.lam.shape

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return self._action(x, self.operator.root, self.tol)

    def precomputed(self, dtype: torch.dtype) -> Mask:
        """Return the same mask, with the `abs_bound` of products in `dtype`."""
        mask = copy(self)
        mask.roundoff = torch.finfo(dtype).eps
        return mask

    def precise(self) -> Mask:
        mask = self.with_values(lam=self.lam.double())
        mask.tol = torch.finfo(torch.float64).eps
        return mask

    def _action(self, x: Tensor, root: Tensor | None, tol: float) -> Tensor:
        """Multiply R exp(-lam S) R^-1 x, for S symmetric and R = diag(root)."""
        dtype = self.compute_dtype(x.dtype)
        folded = Folded(x.to(dtype), self.batch_shape)
        columns, lam = folded.columns, folded.values(self.lam)
        heads = columns.reshape(-1, *columns.shape[-2:]).movedim(0, 1)  # (L, H, C)
        result = _Exponential.apply(heads, lam.reshape(-1), self.operator, tol, root)
        return folded.unfold(result.movedim(1, 0).reshape(columns.shape)).to(x.dtype)

    @full_precision
    def dense(self) -> Tensor:
        generator = self.operator.dense().double()
        lam = self.lam.double()[..., None, None]
        return self._without_noise(torch.matrix_exp(-lam * generator))

    def known_parts(self) -> Mask:
        return self if self.part_sizes is not None else self.in_parts(self.operator.parts)

    @full_precision
    def diagonal_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Form blocks by the eigenvalues of each, which are computed once: O(n^3)."""
        values, vectors = self.operator.eigen(starts, sizes)
        heat = (-self.lam.double()[..., None, None] * values).exp()
        blocks = (vectors * heat[..., None, :]) @ vectors.mT
        inside = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]  # exp(0) is 1 beyond
        inside = (inside[:, None] & inside[..., None]).to(blocks.device)
        blocks = blocks.masked_fill(~inside, 0.0)
        return self._without_noise(self.operator.conjugated(blocks, starts, sizes))

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        """Compute rows by the action of the transpose on unit columns, to all digits."""
        check_rows(start, stop, self.length)
        device = self.lam.device
        units = torch.zeros(self.length, stop - start, dtype=torch.float64, device=device)
        units[start:stop] = torch.eye(stop - start, dtype=units.dtype, device=units.device)
        inverse_root = None if self.operator.root is None else 1 / self.operator.root
        tol = min(self.tol, torch.finfo(units.dtype).eps)
        return self._without_noise(self._action(units, inverse_root, tol).mT)

    def _without_noise(self, matrix: Tensor) -> Tensor:
        """Set entries below the round-off of the norm to 0, and for lam >= 0 negative ones.

        A faint row would be all noise, and the logarithm of a negative entry is NaN. The matrix
        comes in float64, whatever the precision of lam: keys of wide range make small entries
        count.
        """
        own = (...,) + (None,) * (matrix.ndim - self.lam.ndim)  # dims of the matrices
        norm = self.operator.norm(self.lam.detach().double())[own]
        noise = matrix.abs() <= torch.finfo(matrix.dtype).eps * norm
        hidden = noise | ((matrix < 0) & (self.lam[own] >= 0))
        return matrix.masked_fill(hidden, 0.0).to(self.lam.dtype)

    def components(self) -> Tensor:
        return self.operator.components

    def cost(self, columns: int) -> float:
        # lam may be learned and is not looked at: the number of products at the scale of lam = 1
        products = 15 + 3 * self.operator.interval.radius**0.5
        return products * columns * (self.operator.matrix.num_entries + 4 * self.length)

    def abs_bound(self) -> Mask:
        """A mask that is the norm of M everywhere: the error may fall into any row.

        It is larger where `tol` is above the round-off of the precision that the mask was prepared
        for, by their ratio.
        """
        norm = self.operator.norm(self.lam.detach()) * max(1.0, self.tol / self.roundoff)
        return Scaled(
            Ones(self.length, norm.device), left=norm[..., None].expand(*norm.shape, self.length)
        )


class _Exponential(torch.autograd.Function):
    """The action y = R exp(-lam S) R^-1 x, for a symmetric S and R = diag(root).

    The gradient of x is the transpose's action, R^-1 exp(-lam S) R; d/dlam is -R S R^-1 y. Both
    can be differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lam: Tensor, operator: Operator, tol: float, root: Tensor | None
    ) -> Tensor:
        result = operator.apply(x, lam, tol, root)
        ctx.operator, ctx.tol, ctx.root = operator, tol, root
        ctx.save_for_backward(lam, result if ctx.needs_input_grad[1] else None)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        lam, result = ctx.saved_tensors
        grad_x = grad_lam = None
        if ctx.needs_input_grad[0]:
            inverse_root = None if ctx.root is None else 1 / ctx.root
            grad_x = _Exponential.apply(grad, lam, ctx.operator, ctx.tol, inverse_root)
        if ctx.needs_input_grad[1]:
            slope = ctx.operator.times(result.flatten(1), ctx.root).view_as(result)
            grad_lam = -(grad * slope).sum((0, 2)).to(lam.dtype)
        return grad_x, grad_lam, None, None, None
