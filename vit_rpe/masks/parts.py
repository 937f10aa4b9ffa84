"""Some of the parts of a mask, such as the small graphs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .base import Mask, as_length, check_columns, check_rows


class _Run(NamedTuple):
    """Tokens that are neighbors in the whole mask, too: where they begin there, and here."""

    whole: int
    own: int
    size: int


class ChosenParts(Mask):
    """The parts of a mask with these numbers, one after the other; its `index` are their tokens.

    A product is one with the whole mask, among zeros; blocks are those of the whole mask.
    """

    def __init__(self, whole: Mask, chosen: Sequence[int], part_sizes: Sequence[int] | None = None):
        part_sizes = whole.part_sizes if part_sizes is None else part_sizes
        if part_sizes is None:
            raise ValueError(f"ChosenParts needs a mask in parts, got {whole!r}")
        self._all_sizes = part_sizes
        self.whole, self.chosen = whole, tuple(chosen)
        starts = [0]
        for size in part_sizes:
            starts.append(starts[-1] + size)
        self.part_sizes = tuple(part_sizes[i] for i in chosen)
        self.length = as_length(sum(self.part_sizes))
        self._tokens = [j for i in chosen for j in range(starts[i], starts[i + 1])]
        self.index = torch.tensor(self._tokens, device=whole.device)
        self.nonnegative, self.normwise = whole.nonnegative, whole.normwise
        self.prefers_row_major = whole.prefers_row_major

    def parts(self) -> tuple[Mask, ...]:
        return (self.whole,)

    @property
    def batch_shape(self) -> torch.Size:
        return self.whole.batch_shape

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        among = x.new_zeros(*x.shape[:-2], self.whole.length, x.shape[-1])
        return self._own(self.whole.matmul(among.index_copy(-2, self.index, x)), -2)

    def dense(self) -> Tensor:
        return self._own(self._own(self.whole.dense(), -2), -1)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        slabs = [self.whole.rows(r.whole, r.whole + r.size) for r in self._runs(start, stop)]
        return self._own(torch.cat(slabs, -2), -1)

    def diagonal_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        runs = [self._runs(i, i + size) for i, size in zip(starts, sizes, strict=True)]
        several = [run for some in runs for run in some]
        blocks = self.whole.diagonal_blocks([r.whole for r in several], [r.size for r in several])
        if len(several) == len(starts):
            return blocks
        n = max(sizes)
        result = blocks.new_zeros(*blocks.shape[:-3], len(starts), n, n)
        block = iter(blocks.unbind(-3))
        for number, (start, some) in enumerate(zip(starts, runs, strict=True)):
            for run in some:
                here, filled = slice(run.own - start, run.own - start + run.size), slice(run.size)
                result[..., number, here, here] = next(block)[..., filled, filled]
        return result

    def _runs(self, start: int, stop: int) -> list[_Run]:
        """Cut a range of own tokens where neighbors are not neighbors in the whole mask."""
        runs: list[_Run] = []
        for own in range(start, stop):
            token = self._tokens[own]
            if runs and runs[-1].whole + runs[-1].size == token:
                runs[-1] = runs[-1]._replace(size=runs[-1].size + 1)
            else:
                runs.append(_Run(token, own, 1))
        return runs

    def _own(self, x: Tensor, dim: int) -> Tensor:
        return x.index_select(dim, self.index)

    def cost(self, columns: int) -> float:
        return self.whole.cost(columns)

    def abs_bound(self) -> Mask:
        return self._of(self.whole.abs_bound())

    def precise(self) -> Mask:
        return self._of(self.whole.precise())

    def precomputed(self, dtype: torch.dtype) -> Mask:
        return self._of(self.whole.precomputed(dtype))

    def _of(self, whole: Mask) -> ChosenParts:
        return ChosenParts(whole, self.chosen, self._all_sizes)

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.whole.compute_dtype(dtype)

    def components(self) -> Tensor | None:
        whole = self.whole.components()
        return None if whole is None else self._own(whole.to(self.index.device), 0)

    def check(self) -> None:
        self.whole.check()
