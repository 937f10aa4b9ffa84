"""Masks made of masks. Nothing is overridden: what is new wraps what is there."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Mask, as_length, check_columns, check_rows, masked_multiply


class Bordered(Mask):
    """`prefix` class or register tokens before the tokens of another mask, in O(L).

        M = [ corner       row[p]  ]      corner (..., prefix, prefix)
            [ column[p]    inner   ]      row, column (..., prefix): one weight per prefix token

    A prefix query sees every inner key with its `row` weight, and every inner query sees a prefix
    key with its `column` weight. What is not given is 1. `nonnegative` promises that no weight that
    is given is negative.
    """

    tensor_names = ("row", "column", "corner")

    def __init__(
        self,
        inner: Mask,
        prefix: int,
        row: Tensor | None = None,
        column: Tensor | None = None,
        corner: Tensor | None = None,
        *,
        nonnegative: bool = False,
    ):
        if prefix < 0:
            raise ValueError(f"Bordered needs a prefix of 0 or more tokens, got {prefix}")
        for name, value, shape in (
            ("row", row, (prefix,)),
            ("column", column, (prefix,)),
            ("corner", corner, (prefix, prefix)),
        ):
            if value is not None and tuple(value.shape[-len(shape) :]) != shape:
                raise ValueError(
                    f"a prefix of {prefix} needs {name} ending in {shape}, got {tuple(value.shape)}"
                )
        self.inner = inner
        self.normwise = inner.normwise
        self.prefix = prefix
        self.length = prefix + inner.length
        self.prefers_row_major = inner.prefers_row_major
        self.row = row
        self.column = column
        self.corner = corner
        ones = row is None and column is None and corner is None
        self._positive_border = nonnegative or ones
        self.nonnegative = inner.nonnegative and self._positive_border

    def parts(self) -> tuple[Mask, ...]:
        return (self.inner,)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(
            self.inner.batch_shape,
            _batch_shape(self.row, 1),
            _batch_shape(self.column, 1),
            _batch_shape(self.corner, 2),
        )

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        first, rest = x[..., : self.prefix, :], x[..., self.prefix :, :]
        everything = rest.sum(-2, keepdim=True)
        if self.corner is None:
            top = first.sum(-2, keepdim=True).expand_as(first)
        else:
            top = (self.corner[..., None].to(x.dtype) * first[..., None, :, :]).sum(-2)
        top = top + (
            everything if self.row is None else self.row[..., None].to(x.dtype) * everything
        )
        weighed = first if self.column is None else self.column[..., None].to(x.dtype) * first
        return stack_rows([top, self.inner.matmul(rest) + weighed.sum(-2, keepdim=True)])

    def dense(self) -> Tensor:
        return self._with_border(self.inner.dense(), 0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        inner_start, inner_stop = max(start - self.prefix, 0), max(stop - self.prefix, 0)
        inner = self.inner.rows(inner_start, inner_stop) if inner_stop else None
        return self._with_border(inner, start, stop)

    def _with_border(self, inner: Tensor | None, start: int, stop: int) -> Tensor:
        """Rows start to stop, given those of them that belong to the inner mask."""
        parts = []
        like = inner if inner is not None else self.inner.rows(0, 1)
        if start < self.prefix:
            p = slice(start, min(stop, self.prefix))
            count = p.stop - start
            corner = (
                like.new_ones(count, self.prefix) if self.corner is None else self.corner[..., p, :]
            )
            row = like.new_ones(count) if self.row is None else self.row[..., p]
            parts.append(join_columns(corner, row[..., None].expand(*row.shape, self.inner.length)))
        if inner is not None:
            column = like.new_ones(self.prefix) if self.column is None else self.column
            column = column[..., None, :].expand(*column.shape[:-1], inner.shape[-2], self.prefix)
            parts.append(join_columns(column, inner))
        return stack_rows(parts)

    def cost(self, columns: int) -> float:
        return self.inner.cost(columns) + columns * (
            2 * self.inner.length + self.prefix * (self.prefix + 2)
        )

    def abs_bound(self) -> Mask:
        row, column, corner = (
            None if value is None else value.detach().abs()
            for value in (self.row, self.column, self.corner)
        )
        return Bordered(self.inner.abs_bound(), self.prefix, row, column, corner, nonnegative=True)

    def precise(self) -> Mask:
        return self._around(self.inner.precise())

    def precomputed(self, dtype: torch.dtype) -> Mask:
        return self._around(self.inner.precomputed(dtype))

    def _around(self, inner: Mask) -> Bordered:
        """Put this border around another mask."""
        border = (self.row, self.column, self.corner)
        return Bordered(inner, self.prefix, *border, nonnegative=self._positive_border)

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.inner.compute_dtype(dtype)

    def check(self) -> None:
        super().check()
        self.inner.check()


class Sum(Mask):
    """The sum of masks of one length."""

    def __init__(self, masks: Sequence[Mask]):
        self.masks = tuple(masks)
        lengths = {mask.length for mask in self.masks}
        if len(lengths) != 1:
            raise ValueError(
                "Sum needs one or more masks of one length, "
                f"got lengths {[mask.length for mask in self.masks]}"
            )
        self.length = lengths.pop()
        self.row_block = max(mask.row_block for mask in self.masks)
        self.normwise = any(mask.normwise for mask in self.masks)
        self.prefers_row_major = all(mask.prefers_row_major for mask in self.masks)
        self.nonnegative = all(mask.nonnegative for mask in self.masks)

    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(*(mask.batch_shape for mask in self.masks))

    def matmul(self, x: Tensor) -> Tensor:
        return total([mask.matmul(x) for mask in self.masks])

    def dense(self) -> Tensor:
        return total([mask.dense() for mask in self.masks])

    def rows(self, start: int, stop: int) -> Tensor:
        return total([mask.rows(start, stop) for mask in self.masks])

    def cost(self, columns: int) -> float:
        return sum(mask.cost(columns) for mask in self.masks)

    def abs_bound(self) -> Mask:
        return Sum([mask.abs_bound() for mask in self.masks])

    def precise(self) -> Mask:
        return Sum([mask.precise() for mask in self.masks])

    def precomputed(self, dtype: torch.dtype) -> Mask:
        return Sum([mask.precomputed(dtype) for mask in self.masks])

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return _widest([mask.compute_dtype(dtype) for mask in self.masks])

    def check(self) -> None:
        for mask in self.masks:
            mask.check()


class Scaled(Mask):
    """`diag(left) inner diag(right)`: padding, or any weight per token, composed with any mask.

    `left` and `right` are (..., L), real or boolean. What a zero in `right` hides stays hidden,
    even if it is NaN. `nonnegative` promises that no weight that is given is negative.
    """

    tensor_names = ("left", "right")

    def __init__(
        self,
        inner: Mask,
        left: Tensor | None = None,
        right: Tensor | None = None,
        *,
        nonnegative: bool = False,
    ):
        for name, value in (("left", left), ("right", right)):
            if value is not None and (value.ndim < 1 or value.shape[-1] != inner.length):
                raise ValueError(
                    f"{name} must have shape (..., {inner.length}), got {tuple(value.shape)}"
                )
        self.inner = inner
        self.length = inner.length
        self.normwise = inner.normwise
        self.row_block = inner.row_block
        self.prefers_row_major = inner.prefers_row_major
        self.left = left
        self.right = right
        hides = all(x is None or x.dtype == torch.bool for x in (left, right))
        self._positive_weights = nonnegative or hides
        self.nonnegative = inner.nonnegative and self._positive_weights

    def parts(self) -> tuple[Mask, ...]:
        return (self.inner,)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(
            self.inner.batch_shape, _batch_shape(self.left, 1), _batch_shape(self.right, 1)
        )

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = x.dtype
        if self.right is not None:
            x = masked_multiply(self.right[..., None], x)
        x = self.inner.matmul(x)
        if self.left is not None:
            x = masked_multiply(self.left[..., None], x)
        return x.to(dtype)

    def dense(self) -> Tensor:
        return self._scale(self.inner.dense(), self.left)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        return self._scale(
            self.inner.rows(start, stop), None if self.left is None else self.left[..., start:stop]
        )

    def _scale(self, slab: Tensor, left: Tensor | None) -> Tensor:
        if self.right is not None:
            slab = slab * self.right[..., None, :]
        return slab if left is None else slab * left[..., None]

    def cost(self, columns: int) -> float:
        return self.inner.cost(columns) + 2 * self.length * columns

    def abs_bound(self) -> Mask:
        left, right = (
            None if value is None else _absolute(value) for value in (self.left, self.right)
        )
        return Scaled(self.inner.abs_bound(), left, right, nonnegative=True)

    def precise(self) -> Mask:
        return self.around(self.inner.precise())

    def precomputed(self, dtype: torch.dtype) -> Mask:
        return self.around(self.inner.precomputed(dtype))

    def around(self, inner: Mask, tokens: slice = slice(None)) -> Scaled:
        """Put the same weights, or those of some of the tokens, around another mask."""
        left, right = (None if x is None else x[..., tokens] for x in (self.left, self.right))
        return Scaled(inner, left, right, nonnegative=self._positive_weights)

    def in_parts(self, sizes: Sequence[int]) -> Scaled:
        return self.around(self.inner.in_parts(sizes))

    def components(self) -> Tensor | None:
        return self.inner.components()

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.inner.compute_dtype(dtype)

    def check(self) -> None:
        super().check()
        self.inner.check()


class BlockDiagonal(Mask):
    """Masks one after the other, and zeros between them: packed grids of different shapes.

    Each block is multiplied on its own; nothing is spent on what lies between.
    """

    def __init__(self, masks: Sequence[Mask]):
        self.masks = tuple(masks)
        self.length = as_length(sum(mask.length for mask in self.masks))
        self.normwise = any(mask.normwise for mask in self.masks)
        self.prefers_row_major = all(mask.prefers_row_major for mask in self.masks)
        self.nonnegative = all(mask.nonnegative for mask in self.masks)

    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    @property
    def lengths(self) -> list[int]:
        return [mask.length for mask in self.masks]

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(*(mask.batch_shape for mask in self.masks))

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        parts = x.split(self.lengths, -2)
        return stack_rows([mask.matmul(part) for mask, part in zip(self.masks, parts, strict=True)])

    def dense(self) -> Tensor:
        return self._place([mask.dense() for mask in self.masks])

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        slabs, begin = [], 0
        for mask in self.masks:
            first, last = max(start - begin, 0), min(stop - begin, mask.length)
            slabs.append(mask.rows(first, last) if first < last else None)
            begin += mask.length
        return self._place(slabs)

    def _place(self, slabs: list[Tensor | None]) -> Tensor:
        """Each block's slab between zeros; a block without rows leaves none."""
        parts, begin = [], 0
        for mask, slab in zip(self.masks, slabs, strict=True):
            if slab is not None:
                parts.append(
                    torch.nn.functional.pad(slab, (begin, self.length - begin - mask.length))
                )
            begin += mask.length
        return stack_rows(parts)

    def cost(self, columns: int) -> float:
        return sum(mask.cost(columns) for mask in self.masks)

    def abs_bound(self) -> Mask:
        return BlockDiagonal([mask.abs_bound() for mask in self.masks])

    def precise(self) -> Mask:
        return BlockDiagonal([mask.precise() for mask in self.masks])

    def precomputed(self, dtype: torch.dtype) -> Mask:
        return BlockDiagonal([mask.precomputed(dtype) for mask in self.masks])

    def components(self) -> Tensor | None:
        """The blocks, each as one part."""
        return torch.arange(len(self.masks)).repeat_interleave(torch.tensor(self.lengths))

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return _widest([mask.compute_dtype(dtype) for mask in self.masks])

    def check(self) -> None:
        for mask in self.masks:
            mask.check()


def stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the rows; leading dims broadcast."""
    return _concatenate(parts, -2)


def join_columns(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate along the columns; leading dims broadcast."""
    return _concatenate([left, right], -1)


def _concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    lead = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
    return torch.cat([part.expand(*lead, *part.shape[-2:]) for part in parts], dim)


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum; leading dims broadcast."""
    return functools.reduce(torch.add, parts)


def _widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return functools.reduce(torch.promote_types, dtypes)


def _absolute(weight: Tensor) -> Tensor:
    return weight if weight.dtype == torch.bool else weight.detach().abs()


def _batch_shape(tensor: Tensor | None, own_dims: int) -> torch.Size:
    return torch.Size() if tensor is None else tensor.shape[:-own_dims]
