"""The masks every Transformer knows (paper, Sec. 3), and any given matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Mask, as_length, check_columns, check_rows, masked_multiply


class Ones(Mask):
    """No mask: every entry is 1. O(L)."""

    nonnegative = True

    def __init__(self, length: int, device: torch.device | str | None = None):
        self.length = as_length(length)
        self._device = torch.get_default_device() if device is None else torch.device(device)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return x.sum(-2, keepdim=True).expand_as(x)

    def dense(self) -> Tensor:
        return torch.ones(self.length, self.length, device=self.device)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        return torch.ones(stop - start, self.length, device=self.device)

    def cost(self, columns: int) -> float:
        return self.length * columns

    def abs_bound(self) -> Mask:
        return self


class Causal(Mask):
    """A query sees itself and what came before: `M[i, j] = 1` for j <= i. Prefix sums, O(L)."""

    nonnegative = True

    def __init__(self, length: int, device: torch.device | str | None = None):
        self.length = as_length(length)
        self._device = torch.get_default_device() if device is None else torch.device(device)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return x.cumsum(-2, dtype=self.compute_dtype(x.dtype)).to(x.dtype)

    def dense(self) -> Tensor:
        return torch.ones(self.length, self.length, device=self.device).tril()

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        query = torch.arange(start, stop, device=self.device)
        return _weights(query[:, None] >= torch.arange(self.length, device=self.device))

    def cost(self, columns: int) -> float:
        return self.length * columns

    def abs_bound(self) -> Mask:
        return self


class Padding(Mask):
    """No query sees a padded key: `M[i, j] = keep[j]`. O(L).

    `keep` is boolean, (..., L); per sample that is (B, 1, L).
    """

    nonnegative = True
    tensor_names = ("keep",)

    def __init__(self, keep: Tensor):
        if keep.dtype != torch.bool or keep.ndim < 1:
            raise ValueError(
                "Padding needs a boolean keep of shape (..., L), "
                f"got {keep.dtype} {tuple(keep.shape)}"
            )
        self.length = as_length(keep.shape[-1])
        self.keep = keep

    @property
    def batch_shape(self) -> torch.Size:
        return self.keep.shape[:-1]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        total = masked_multiply(self.keep[..., None], x).sum(-2, keepdim=True)
        return total.expand(*total.shape[:-2], self.length, x.shape[-1])

    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        keep = _weights(self.keep)[..., None, :]
        return keep.expand(*keep.shape[:-2], stop - start, self.length)

    def cost(self, columns: int) -> float:
        return 2 * self.length * columns

    def abs_bound(self) -> Mask:
        return self


class Packing(Mask):
    """Several sequences in one: a query sees the keys of its own segment.

    O(L) a column, after one sort of the ids.

    `segments` holds integer ids, (..., L), in any order and number; tokens of one id form a
    segment.
    """

    nonnegative = True
    tensor_names = ("segments",)

    def __init__(self, segments: Tensor):
        if segments.dtype.is_floating_point or segments.dtype == torch.bool or segments.ndim < 1:
            raise ValueError(
                "Packing needs integer segment ids of shape (..., L), "
                f"got {segments.dtype} {tuple(segments.shape)}"
            )
        self.length = as_length(segments.shape[-1])
        self.segments = segments

    def _slots(self) -> Tensor:
        """The segments renumbered from 0 without gaps, (..., L).

        By sorting, so that no shape depends on the values: there are never more than L of them.
        """
        ids, order = self.segments.sort(dim=-1, stable=True)
        begins = torch.zeros_like(ids)
        begins[..., 1:] = (ids[..., 1:] != ids[..., :-1]).to(ids.dtype)
        return torch.empty_like(order).scatter_(-1, order, begins.cumsum(-1, dtype=torch.int64))

    @property
    def batch_shape(self) -> torch.Size:
        return self.segments.shape[:-1]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        lead = torch.broadcast_shapes(self.segments.shape[:-1], x.shape[:-2])
        x = x.expand(*lead, *x.shape[-2:])
        slots = self._slots()[..., None].expand(x.shape)
        totals = torch.zeros(x.shape, dtype=self.compute_dtype(x.dtype), device=x.device)
        return totals.scatter_add(-2, slots, x.to(totals.dtype)).gather(-2, slots).to(x.dtype)

    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        return _weights(self.segments[..., start:stop, None] == self.segments[..., None, :])

    def cost(self, columns: int) -> float:
        return 4 * self.length * columns

    def abs_bound(self) -> Mask:
        return self

    def components(self) -> Tensor | None:
        return self.segments if self.segments.ndim == 1 else None


class Dense(Mask):
    """Any matrix, (..., L, L), multiplied as it is: O(L^2). The definition of every other mask.

    `nonnegative` promises that no entry is negative.
    """

    tensor_names = ("matrix",)

    def __init__(self, matrix: Tensor, *, nonnegative: bool = False):
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ValueError(
                f"Dense needs a matrix of shape (..., L, L), got {tuple(matrix.shape)}"
            )
        self.length = as_length(matrix.shape[-1])
        self.matrix = matrix
        self.nonnegative = nonnegative

    @property
    def batch_shape(self) -> torch.Size:
        return self.matrix.shape[:-2]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = torch.promote_types(self.matrix.dtype, self.compute_dtype(x.dtype))
        return (self.matrix.to(dtype) @ x.to(dtype)).to(x.dtype)

    def dense(self) -> Tensor:
        return self.matrix

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        return self.matrix[..., start:stop, :]

    def cost(self, columns: int) -> float:
        return self.length**2 * columns

    def abs_bound(self) -> Mask:
        return Dense(self.matrix.detach().abs(), nonnegative=True)


def _weights(seen: Tensor) -> Tensor:
    """1 where a key is seen and 0 where it is not, in torch's default precision."""
    return seen.to(torch.get_default_dtype())
