"""The additive kernel is exact, and holds keys of wide range."""

import pytest
import torch

from vit_rpe.features import AdditiveFeatures


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_leveled_keys_have_the_same_kernel(scale):
    features = AdditiveFeatures().double()
    s, t = torch.randn(2, 2, 6, 1, dtype=torch.float64)
    t = t * scale
    parts = torch.tensor([0, 0, 0, 1, 1, 1])
    z = (s + t.mT)[:, :3, :3]
    expected = torch.softmax(torch.logaddexp(z, features.slope * z), -1)
    q, k = features.leveled(s, t, lambda: parts)
    phi_q, phi_k = features.query(q)[:, :3], features.key(k)[:, :3]
    kernel = phi_q @ phi_k.mT
    torch.testing.assert_close(kernel / kernel.sum(-1, keepdim=True), expected)


def test_components_are_asked_for_only_where_float32_is_too_narrow():
    features, asked = AdditiveFeatures(), []

    def components():
        asked.append(1)
        return torch.tensor([0, 0, 1, 1])

    s, t = torch.zeros(4, 1), torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert features.leveled(s, t, components)[1].dtype == torch.float32 and not asked
    apart = t + torch.tensor([[0.0], [0.0], [100.0], [100.0]])
    q, k = features.leveled(s, apart, components)
    assert asked and k.dtype == torch.float32 and k.max() == 0 and k.min() == -1
    assert features.leveled(s, t * 100, components)[1].dtype == torch.float64


def test_one_number_a_node():
    with pytest.raises(ValueError, match="one number a node, got 3"):
        AdditiveFeatures()(torch.rand(4, 3), torch.rand(4, 3))
