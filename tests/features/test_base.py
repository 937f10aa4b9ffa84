"""What all feature maps do with queries and keys."""

import torch

from vit_rpe.features import SquareFeatures

DIM = 8


def test_unit_norm():
    q = torch.randn(3, 5, DIM)
    phi_q, _ = SquareFeatures(unit_norm=True)(q, q)
    torch.testing.assert_close(phi_q.sum(-1), torch.ones(3, 5))
