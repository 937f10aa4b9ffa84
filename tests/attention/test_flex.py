"""FlexAttention's softmax of log kernel + log mask is masked kernel attention."""

import pytest
import torch

from tests.zoo import rand
from vit_rpe.attention.flex import flex_attention, flex_fits
from vit_rpe.attention.reference import masked_attention
from vit_rpe.masks import Bordered, Dense, Toeplitz


@pytest.mark.parametrize("border", ["none", "ones", "learned"])
def test_equals_the_definition(border):
    mask = Toeplitz(rand(3, 7, 9), (4, 5))
    if border != "none":
        weights = (rand(3, 2), rand(3, 2), rand(3, 2, 2)) if border == "learned" else ()
        mask = Bordered(mask, 2, *weights)
    q, k = (torch.relu(rand(2, 3, mask.length, 8) - 0.5) for _ in range(2))  # with zeros
    q[0, 1, 3] = 0.0  # an empty row
    v = rand(2, 3, mask.length, 8)
    out = flex_attention(q, k, v, mask, compiled=False)
    torch.testing.assert_close(out, masked_attention(q, k, v, mask))
    assert (out[0, 1, 3] == 0).all()


def test_serves_cuda_inference_alone():
    mask, x = Toeplitz(torch.rand(3, 7, 9), (4, 5)), torch.rand(2, 3, 20, 8)
    assert not flex_fits(mask, True, x)  # a CPU
    assert not flex_fits(Dense(torch.rand(20, 20)), True, x)
