"""Random directions that are orthogonal in blocks."""

import torch

from vit_rpe.features import orthogonal_gaussian


def test_blocks_are_orthogonal_and_rows_gaussian():
    matrix = orthogonal_gaussian(20, 6, torch.Generator().manual_seed(0))
    for start in range(0, 20, 6):
        block = matrix[start : start + 6]
        gram = block @ block.T
        torch.testing.assert_close(gram, gram.diagonal().diag(), atol=1e-4, rtol=0)
    rows = orthogonal_gaussian(6000, 6, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows.T @ rows / 6000, torch.eye(6), atol=0.06, rtol=0)
