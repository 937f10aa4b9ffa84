"""Graph diffusion kernels as masks (paper, Sec. 4, Eq. (4), Theorem 4.1).

Shapes: L nodes, H heads, C columns.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vit_rpe.masks import Mask, Ones, Scaled
from vit_rpe.masks.base import check_columns, check_rows

from .base import Folded, GraphMask, as_values
from .chebyshev import Interval, coefficients, expand, spectral_interval
from .csr import SparseMatrix, block_width, local_order
from .edges import as_graph, coalesce, connected_components

KINDS = ("laplacian", "normalized", "adjacency")


class Diffusion(GraphMask):
    """`M = exp(-lam T)`: heat that has spread along the edges for a time lam.

    | kind | T | |
    |---|---|---|
    | `laplacian` | L = D - Adj | rows and columns sum to 1 |
    | `normalized` | L D^-1 | columns sum to 1: walks of Poisson(lam) many steps |
    | `adjacency` | -Adj | walks of length k, weighed by lam^k / k! |

    `lam` is a number or a tensor (...), one for each head, learnable; the kernel is flatter the
    larger it is. Isolated nodes keep what they have; a self-loop counts once in Adj and D, parallel
    edges add up. A batch of graphs is one graph of several components, as in PyG.

    The product is a Chebyshev expansion of sparse products: about sqrt(lam |T| log(1 / tol)) of
    them, O(edges + L) each. Its error is at most `tol |exp(-lam T)| |x|` (2-norms, for each
    column), beside the round-off of x's own precision. L D^-1 is not symmetric, and is handled as
    D^(1/2) (D^(-1/2) L D^(-1/2)) D^(-1/2).
    """

    normwise = True
    tensor_names = ("lam",)

    def __init__(
        self,
        edge_index: Tensor,
        lam: float | Tensor = 1.0,
        kind: str = "laplacian",
        num_nodes: int | None = None,
        tol: float = 1e-8,
        edge_weight: Tensor | None = None,
    ):
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if not isinstance(tol, int | float) or not 1e-16 <= tol < 1:
            raise ValueError(f"tol must be at least 1e-16 and less than 1, got {tol!r}")
        self.length = as_graph(edge_index, num_nodes, edge_weight)
        self.kind = kind
        self.tol = tol
        self.roundoff = tol
        self.lam = as_values(lam, "lam")
        self.operator = _Operator(edge_index, edge_weight, self.length, kind)

    @property
    def lead(self) -> torch.Size:
        return self.lam.shape

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return self._action(x, self.operator.root, self.tol)

    def prepared(self, dtype: torch.dtype) -> Mask:
        """The same mask, whose `magnitude` is that of products in `dtype`."""
        mask = copy(self)
        mask.roundoff = torch.finfo(dtype).eps
        return mask

    def precise(self) -> Mask:
        mask = self.with_values(lam=self.lam.double())
        mask.tol = torch.finfo(torch.float64).eps
        return mask

    def _action(self, x: Tensor, root: Tensor | None, tol: float) -> Tensor:
        """R exp(-lam S) R^-1 x, for S symmetric and R = diag(root)."""
        dtype = self.compute_dtype(x.dtype)
        folded = Folded(x.to(dtype), self.lead)
        columns, lam = folded.columns, folded.values(self.lam)
        heads = columns.reshape(-1, *columns.shape[-2:]).movedim(0, 1)  # (L, H, C)
        result = _Exponential.apply(heads, lam.reshape(-1), self.operator, tol, root)
        return folded.unfold(result.movedim(1, 0).reshape(columns.shape)).to(x.dtype)

    def dense(self) -> Tensor:
        generator = self.operator.dense().double()
        lam = self.lam.double()[..., None, None]
        return self._without_noise(torch.matrix_exp(-lam * generator))

    def rows(self, start: int, stop: int) -> Tensor:
        """By the action of the transpose on unit columns, to all digits."""
        check_rows(start, stop, self.length)
        device = self.lam.device
        units = torch.zeros(self.length, stop - start, dtype=torch.float64, device=device)
        units[start:stop] = torch.eye(stop - start, dtype=units.dtype, device=units.device)
        inverse_root = None if self.operator.root is None else 1 / self.operator.root
        tol = min(self.tol, torch.finfo(units.dtype).eps)
        return self._without_noise(self._action(units, inverse_root, tol).mT)

    def _without_noise(self, matrix: Tensor) -> Tensor:
        """Entries below the round-off of the norm are 0, and for lam >= 0 none is negative.

        A faint row would be all noise, and the logarithm of a negative entry is NaN. The matrix
        comes in float64, whatever the precision of lam: keys of wide range make small entries
        count.
        """
        norm = self.operator.norm(self.lam.detach().double())[..., None, None]
        noise = matrix.abs() <= torch.finfo(matrix.dtype).eps * norm
        hidden = noise | ((matrix < 0) & (self.lam[..., None, None] >= 0))
        return matrix.masked_fill(hidden, 0.0).to(self.lam.dtype)

    def components(self) -> Tensor:
        return self.operator.components

    def cost(self, columns: int) -> float:
        # lam may be learned and is not looked at: about so many products at the scale of lam = 1
        products = 15 + 3 * self.operator.interval.radius**0.5
        return products * columns * (self.operator.matrix.num_entries + 4 * self.length)

    def magnitude(self) -> Mask:
        """The norm of M in every place: the error does not know which row it falls into.

        Where `tol` is above the round-off of the precision that it was prepared for, by so much
        more.
        """
        norm = self.operator.norm(self.lam.detach()) * max(1.0, self.tol / self.roundoff)
        return Scaled(
            Ones(self.length, norm.device), left=norm[..., None].expand(*norm.shape, self.length)
        )


class _Operator:
    """T as it is, and the symmetric matrix S with T = R S R^-1, scaled to [-1, 1].

    S has its nodes in another order: row i is node `order[i]`, node j is row `place[j]`.
    """

    def __init__(self, edge_index: Tensor, edge_weight: Tensor | None, n: int, kind: str):
        key, weight = coalesce(edge_index, edge_weight, n)
        row, column = key // n, key % n
        degree = weight.new_zeros(n).index_add_(0, row, weight)
        self.degree = degree.masked_fill(degree == 0, 1.0)  # isolated: nothing to divide
        self.kind = kind
        self.adjacency = SparseMatrix(row, column, (n, n)), weight
        self.root = self.degree.sqrt() if kind == "normalized" else None

        nodes = torch.arange(n, device=row.device)
        value = -weight
        if self.root is not None:
            value = value / (self.root[row] * self.root[column])
        diagonal = torch.zeros_like(degree) if kind == "adjacency" else degree / self.degree
        if kind == "laplacian":
            diagonal = degree
        # neighbours get numbers that are close, so that what is gathered is in the cache
        self.order = local_order(row, column, n)
        self.place = torch.argsort(self.order)
        row, column = (self.place[torch.cat([end, nodes])] for end in (row, column))
        self.matrix = SparseMatrix(row, column, (n, n))
        self.value = self.matrix.in_order(torch.cat([value, diagonal]))
        # self-loops share the diagonal's places: a shift is given to one entry of each
        given = torch.arange(len(row), device=row.device) >= len(value)
        self.is_diagonal = self.matrix.in_order(given)
        self.interval = self._interval()
        self._scaled: dict[torch.dtype, Tensor] = {}

    @cached_property
    def components(self) -> Tensor:
        pattern = self.adjacency[0]
        return connected_components(pattern.row, pattern.column, pattern.shape[0])

    def _interval(self) -> Interval:
        """That of the spectrum; what is known for certain bounds what Lanczos saw."""
        sizes = torch.zeros_like(self.degree).index_add_(0, self.matrix.row, self.value.abs())
        bound = float(sizes.max())
        csr = self.matrix.tensor(self.value)
        seen = spectral_interval(lambda x: csr @ x, self.value.new_zeros(len(sizes), 1))
        high = max(min(seen.high, bound), seen.inner_high)
        if self.kind == "adjacency":
            return Interval(max(seen.low, -bound), high, seen.inner_low, seen.inner_high)
        return Interval(0.0, high, 0.0, seen.inner_high)  # each component has the eigenvalue 0

    def norm(self, lam: Tensor) -> Tensor:
        """exp(-lam s) at its largest for s in the interval."""
        return (-lam * self.interval.centre + lam.abs() * self.interval.radius).exp()

    def scaled(self, dtype: torch.dtype) -> Tensor:
        """(S - centre) / radius as a CSR matrix."""
        if dtype not in self._scaled:
            shift = self.interval.centre * self.is_diagonal.to(self.value.dtype)
            value = (self.value - shift) / (self.interval.radius or 1.0)
            self._scaled[dtype] = self.matrix.tensor(value.to(dtype))
        return self._scaled[dtype]

    def times(self, x: Tensor, root: Tensor | None) -> Tensor:
        """R S R^-1 x for x (L, C)."""
        inside = x if root is None else x / root.to(x.dtype)[:, None]
        product = (self.scaled(x.dtype) @ inside[self.order])[self.place]
        product = product if root is None else product * root.to(x.dtype)[:, None]
        return product * self.interval.radius + self.interval.centre * x

    def apply(self, x: Tensor, lam: Tensor, tol: float, root: Tensor | None) -> Tensor:
        """R exp(-lam S) R^-1 x for x (L, H, C) and lam (H,), a slice of columns at a time."""
        spread = 1.0
        if self.root is not None:  # what the two diagonals around S do to an error
            spread = float(self.root.max() / self.root.min())
        terms = coefficients(lam, self.interval, tol / spread)
        norm = self.norm(lam.double())
        if not (norm < torch.finfo(x.dtype).max).all():
            raise ValueError(
                f"exp(-lam T) overflows {x.dtype}: lam is {lam.tolist()}, and T has eigenvalues "
                f"from about {self.interval.inner_low:.4g} to {self.interval.inner_high:.4g}"
            )
        terms = terms * norm[:, None]
        matrix = self.scaled(x.dtype)
        step = max(1, block_width(len(x), x) // x.shape[1])
        scale = None if root is None else root.to(x.dtype)[self.order, None, None]
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        for part, out in zip(x.split(step, -1), result.split(step, -1), strict=True):
            part = part[self.order]
            if scale is None:
                part = expand(matrix, part, terms)
            else:
                part = expand(matrix, part.div_(scale), terms).mul_(scale)
            out.copy_(part[self.place])
        return result

    def dense(self) -> Tensor:
        """T, entry by entry from its definition."""
        pattern, weight = self.adjacency
        n = pattern.shape[0]
        adjacency = weight.new_zeros(n, n)
        adjacency[pattern.row, pattern.column] = pattern.in_order(weight)
        if self.kind == "adjacency":
            return -adjacency
        laplacian = torch.diag(adjacency.sum(1)) - adjacency
        return laplacian / self.degree if self.kind == "normalized" else laplacian


class _Exponential(torch.autograd.Function):
    """y = R exp(-lam S) R^-1 x for a symmetric S and R = diag(root).

    The gradient of x is the transpose's action, R^-1 exp(-lam S) R; d/dlam is -R S R^-1 y. Both
    can be differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lam: Tensor, operator: _Operator, tol: float, root: Tensor | None
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
