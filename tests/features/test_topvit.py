"""The feature map of the authors' TopViT."""

import torch

from vit_rpe.features import TopViTFeatures


def test_relu_with_a_floor_and_a_scaled_query():
    q, k = torch.randn(2, 5, 16)
    phi_q, phi_k = TopViTFeatures()(q, k)
    torch.testing.assert_close(phi_q, torch.relu(q / 4) + 1e-8)
    torch.testing.assert_close(phi_k, torch.relu(k) + 1e-8)
