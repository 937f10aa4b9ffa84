"""Constant sparse matrices: the order of their entries."""

import pytest
import torch

from vit_rpe.masks.csr import SparseMatrix


@pytest.mark.parametrize("lead", [(), (2,)])
def test_values_in_the_order_of_the_entries(lead):
    row, column, values = torch.tensor([2, 0, 1]), torch.tensor([1, 1, 0]), torch.rand(*lead, 3)
    matrix = SparseMatrix(row, column, (3, 2))
    expected = torch.zeros(*lead, 3, 2)
    expected[..., row, column] = values
    ordered = matrix.in_order(values)
    torch.testing.assert_close(matrix.product(ordered, torch.eye(2)), expected)
    # these have no order of their own: values come sorted
    for sorted_before in (
        matrix.mT,
        SparseMatrix.from_sorted(matrix.starts, matrix.column, (3, 2)),
    ):
        assert sorted_before.in_order(values) is values
