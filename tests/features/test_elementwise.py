"""Feature maps that act channel by channel."""

import pytest
import torch

from vit_rpe.features import ELUFeatures, ReLUFeatures, SquareFeatures

DIM = 8


@pytest.mark.parametrize(
    ("features", "function"),
    [
        (ReLUFeatures(), torch.relu),
        (ELUFeatures(), lambda x: torch.where(x > 0, x + 1, x.exp())),
        (SquareFeatures(), lambda x: x * x),
    ],
)
def test_elementwise_maps(features, function):
    q, k = torch.randn(2, 5, DIM), torch.randn(2, 5, DIM)
    phi_q, phi_k = features(q, k)
    torch.testing.assert_close(phi_q, function(q))
    torch.testing.assert_close(phi_k, function(k))
    assert features.num_features(DIM) == DIM
