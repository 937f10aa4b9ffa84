"""The base class of masks: matrices known by their product."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .csr import SparseFactor

Made = TypeVar("Made")

_ENTRIES_AT_ONCE = 1 << 22  # that `check_entries` looks at


class Mask(abc.ABC):
    """An L x L matrix M that weighs what query i takes from key j by `M[i, j]`.

    A mask is a value: tensors and methods, no parameters; an `rpe` module or a graph makes a fresh
    one for each forward pass. Leading dims broadcast against (batch, heads). Constructors check
    shapes only, because they run inside traced and compiled code; `check` looks at the values.

    Shapes, here and in every mask: L tokens, C columns, `...` leading dims.
    """

    length: int
    row_block: int = 1
    """`rows` is cheapest for ranges that start and stop at multiples of this."""
    prefers_row_major: bool = False
    """Whether `matmul` likes columns that are stored row by row (sparse products), not one by one
    (transforms)."""
    normwise: bool = False
    """Whether round-off of `matmul` follows the largest numbers of mask and columns, as that of
    transforms does, and not the numbers of each row: columns of wide range need `precise`."""
    nonnegative: bool = False
    """A promise that no entry is negative: a row's absolute sum is its sum, and softmax attention
    can take logarithms. Constructors that cannot know it take it as `nonnegative=True`."""
    tensor_names: ClassVar[tuple[str, ...]] = ()
    signed_names: ClassVar[tuple[str, ...]] = ()
    """Tensors that may be negative without making an entry negative."""
    part_sizes: tuple[int, ...] | None = None
    """Lengths of consecutive parts of the tokens that do not see each other; None: not known."""
    _computed: dict[Hashable, Any] | None = None
    has_sparse_factor: bool = False
    """Whether the mask is F F^T for the sparse matrix that `sparse_factor` returns."""

    @property
    @abc.abstractmethod
    def batch_shape(self) -> torch.Size:
        """The leading dims of `dense`."""

    @abc.abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """The fast product M x: (..., L, C) -> (..., L, C)."""

    @abc.abstractmethod
    def dense(self) -> Tensor:
        """The matrix (..., L, L), entry by entry from its definition."""

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of `dense`, (..., stop - start, L), without forming the rest."""

    @abc.abstractmethod
    def cost(self, columns: int) -> float:
        """Estimated multiply-adds of `matmul` with some columns, for one head of one sample."""

    @abc.abstractmethod
    def abs_bound(self) -> Mask:
        """A mask that bounds |M| from above, at the scale of the round-off of `matmul`.

        It is |M| itself where `matmul` is exact entry by entry. Attention compares a row's sum
        with it, to tell a row that is empty from one that is merely small.
        """

    def components(self) -> Tensor | None:
        """Parts of the tokens, as one number for each, (L,): no token sees one of another part.

        None: they are one part, or it is not known. Attention divides by the sum over a part, so
        that a factor of its keys cancels, and parts need not have the same one.
        """
        return None

    def in_parts(self, sizes: Sequence[int]) -> Mask:
        """Return this mask with the lengths of its parts: it must be zero between them."""
        sizes = tuple(int(size) for size in sizes if size)
        if sum(sizes) != self.length:
            raise ValueError(f"parts of {sum(sizes)} tokens do not make a mask of {self.length}")
        if sizes == self.part_sizes:
            return self
        self.computed()  # both find what either has computed
        mask = copy(self)
        mask.part_sizes = sizes
        return mask

    def computed(self) -> dict[Hashable, Any]:
        """A place for what attention computes from a constant mask, by its own keys."""
        if self._computed is None:
            self._computed = {}
        return self._computed

    def kept(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` computes, from the last time if the mask has no gradients."""
        tensors = self.all_tensors()
        if any(x.requires_grad or x.is_inference() for x in tensors):
            return make()
        found, key = self.computed(), (key, tuple(x._version for x in tensors))
        if key not in found:
            found[key] = make()
        return found[key]

    def diagonal_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Form square blocks on the diagonal, padded by zeros: (..., B, n, n), n the largest."""
        n = max(sizes)
        blocks = [
            self.rows(start, start + size)[..., start : start + size]
            for start, size in zip(starts, sizes, strict=True)
        ]
        return torch.stack([_padded(block, n) for block in blocks], -3)

    def at(self, row: Tensor, column: Tensor) -> Tensor:
        """Compute the entries M[row, column], (..., P) for P pairs. Here by rows: O(L^2)."""
        step = max(1, _ENTRIES_AT_ONCE // self.length)
        order = torch.argsort(row, stable=True)
        edges = torch.arange(0, self.length + step, step, device=row.device).clamp(max=self.length)
        counts = torch.searchsorted(row[order].contiguous(), edges).diff().tolist()
        parts = []
        for i, pairs in enumerate(order.split(counts)):
            if len(pairs):
                start = i * step
                slab = self.rows(start, min(start + step, self.length))
                parts.append(slab[..., row[pairs] - start, column[pairs]])
        if not parts:
            return torch.zeros(*self.batch_shape, 0, device=row.device)
        return torch.cat(parts, -1).index_select(-1, torch.argsort(order))

    def sparse_factor(self, dtype: torch.dtype) -> SparseFactor:
        """Return F in `dtype`, without gradients; only if `has_sparse_factor`."""
        raise NotImplementedError

    def precomputed(self, dtype: torch.dtype) -> Mask:
        """Return this mask with all that many products with columns of `dtype` share computed."""
        return self

    def precise(self) -> Mask:
        """Return this mask for columns of wide range: what is `normwise` works in float64."""
        return self

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The precision that `matmul` needs for columns of `dtype`."""
        return torch.promote_types(dtype, torch.float32)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that define the mask, by name."""
        values = {name: getattr(self, name) for name in self.tensor_names}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def parts(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""
        return ()

    def all_tensors(self) -> list[Tensor]:
        """The tensors of this mask and of those that it is made of."""
        return [*self.tensors().values(), *(x for part in self.parts() for x in part.all_tensors())]

    @property
    def device(self) -> torch.device:
        """Where the mask's numbers are."""
        return self.parts()[0].device if self.parts() else next(iter(self.all_tensors())).device

    def check(self) -> None:
        """Raise ValueError if a value is not finite, or negative against the mask's promise.

        Never called inside a forward pass.
        """
        for name, value in self.tensors().items():
            bad = value.numel() - int(torch.isfinite(value).sum())
            if bad:
                raise ValueError(
                    f"{type(self).__name__}.{name} has {bad} values that are not finite"
                )
        if self.nonnegative:
            self.check_nonnegative()

    def check_nonnegative(self) -> None:
        """Raise ValueError if a weight is negative. Never called inside a forward pass."""
        for name, value in self.tensors().items():
            if name in self.signed_names or not value.is_floating_point():
                continue
            bad = int((value < 0).sum())
            if bad:
                raise ValueError(f"{type(self).__name__}.{name} has {bad} negative values")
        for part in self.parts():
            part.check_nonnegative()

    def __repr__(self) -> str:
        shapes = [f"{name}={tuple(value.shape)}" for name, value in self.tensors().items()]
        return f"{type(self).__name__}({', '.join([f'length={self.length}', *shapes])})"


def _padded(block: Tensor, n: int) -> Tensor:
    missing = n - block.shape[-1]
    return torch.nn.functional.pad(block, (0, missing, 0, missing))


def check_entries(mask: Mask) -> None:
    """Raise ValueError if an entry is negative, by looking at all of them: O(L^2)."""
    step = max(1, _ENTRIES_AT_ONCE // mask.length)
    for start in range(0, mask.length, step):
        slab = mask.rows(start, min(start + step, mask.length))
        negative = slab < 0
        if negative.any():
            row, column = (int(x) for x in negative.nonzero()[0][-2:])
            raise ValueError(
                f"{type(mask).__name__} promised no negative entry, but M[{start + row}, {column}] "
                f"is {float(slab[negative][0].detach()):.3g}"
            )


def as_length(length: int) -> int:
    if length < 1:
        raise ValueError(f"a mask needs at least one token, got length {length}")
    return int(length)


def as_grid(grid: Sequence[int]) -> tuple[int, ...]:
    """The sides of a grid of tokens in row-major order, checked."""
    sides = tuple(int(n) for n in grid)
    if not sides or min(sides) < 1:
        raise ValueError(f"a grid needs one or more sides of at least 1 token, got {sides}")
    return sides


def as_axes(axes: Sequence[int], grid: tuple[int, ...]) -> tuple[int, ...]:
    """Axis numbers of a grid, negative ones counted from the end, checked."""
    if any(not -len(grid) <= axis < len(grid) for axis in axes):
        raise ValueError(f"a grid of {len(grid)} axes has no axes {tuple(axes)}")
    return tuple(sorted({axis % len(grid) for axis in axes}))


def grid_coordinates(grid: tuple[int, ...], device: torch.device) -> Tensor:
    """The coordinates of each token, (L, d), row-major."""
    axes = [torch.arange(n, device=device) for n in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(prod(grid), len(grid))


def as_values(value: float | Tensor, name: str) -> Tensor:
    """Turn a number into float64, so that it loses no digits; leave a real tensor as it is."""
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a number or a real tensor, got {got}")
    return value


def widest_dtype(dtype: torch.dtype, *values: Tensor) -> torch.dtype:
    """Promote a dtype by those of the values.

    Python numbers do not raise the precision; tensors with dims do.
    """
    for value in values:
        if value.ndim:
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def as_count(value: int, name: str, least: int | None = None) -> int:
    """Return a whole number that is at least `least`; raise ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def as_probability(value: float, name: str) -> float:
    """Return a number from 0 to 1 as a float; raise ValueError for anything else."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability, from 0 to 1, got {value!r}")
    return float(value)


def check_rows(start: int, stop: int, length: int) -> None:
    if not 0 <= start < stop <= length:
        raise ValueError(f"rows {start} to {stop} are not within a mask of {length} tokens")


def check_columns(x: Tensor, length: int) -> None:
    if x.ndim < 2 or x.shape[-2] != length:
        raise ValueError(
            f"a mask of {length} tokens needs x ending in ({length}, columns), got {tuple(x.shape)}"
        )


def masked_multiply(weight: Tensor, x: Tensor) -> Tensor:
    """weight * x, with exact zeros where the weight is zero, whatever stands in x (NaN, infinity).

    `weight` is boolean or real and broadcasts against x.
    """
    if weight.dtype == torch.bool:
        return x.masked_fill(~weight, 0.0)
    return hide_nonfinite(weight, x) * weight


def hide_nonfinite(weight: Tensor, x: Tensor) -> Tensor:
    """x without the NaN and infinity that a zero weight hides; a boolean weight hides all of x.

    Finite numbers stay: a learned weight that is 0 has a gradient, and it is made of them.
    """
    hidden = ~weight if weight.dtype == torch.bool else (weight == 0) & ~x.isfinite()
    return x.masked_fill(hidden, 0.0)
