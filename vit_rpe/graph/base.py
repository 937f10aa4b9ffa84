"""The base class of masks made from graphs."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import as_values, check_entries


class GraphMask(Mask):
    """A mask made from a graph: the graph is fixed, and the values may change.

    The constructor looks at the graph itself, values and all, so it belongs before training; in a
    forward pass `with_values` puts the learned values into an existing mask, at no cost. `matmul`,
    `dense` and `rows` of a subclass are decorated with `full_precision`: there is no sparse product
    in bfloat16, so autocast must be off in them. Constructors take `nonnegative=True` as a promise
    that no entry is negative, whatever the values.
    """

    prefers_row_major = True
    _precomputed: Any = None
    """The numbers that `precomputed` has made from the values."""

    def with_values(self, **values: float | Tensor) -> Self:
        """Return a mask on the same graph with other values: `mask.with_values(lam=self.lam)`."""
        mask = copy(self)
        for name, value in values.items():
            if name not in self.tensor_names:
                known = ", ".join(self.tensor_names)
                raise ValueError(f"{type(self).__name__} has values {known}, got {name!r}")
            setattr(mask, name, as_values(value, name))
        mask.forget()
        mask.check_shapes()
        return mask

    def forget(self) -> None:
        """Drop what was computed from the values of the mask that this one is a copy of."""
        self._precomputed = self._computed = None

    def known_parts(self) -> Mask:
        """Return this mask with the finest parts that its graph shows, if they are not given."""
        return self

    def check_shapes(self) -> None:
        """Raise ValueError if the values do not fit the graph."""

    def check_nonnegative(self) -> None:
        check_entries(self)
