"""Helpers for writing masks: checks of arguments, pieces of products, sparse matrices."""

from .base import (
    as_axes,
    as_count,
    as_grid,
    as_length,
    as_probability,
    as_values,
    check_columns,
    check_entries,
    check_rows,
    grid_coordinates,
    hide_nonfinite,
    masked_multiply,
    widest_dtype,
)
from .compose import join_columns, stack_rows, total
from .csr import Folded, SparseFactor, SparseMatrix, block_width, row_starts
from .exponential import decay, shift_down, spread
from .toeplitz import fast_size

__all__ = [
    "Folded",
    "SparseFactor",
    "SparseMatrix",
    "as_axes",
    "as_count",
    "as_grid",
    "as_length",
    "as_probability",
    "as_values",
    "block_width",
    "check_columns",
    "check_entries",
    "check_rows",
    "decay",
    "fast_size",
    "grid_coordinates",
    "hide_nonfinite",
    "join_columns",
    "masked_multiply",
    "row_starts",
    "shift_down",
    "spread",
    "stack_rows",
    "total",
    "widest_dtype",
]
