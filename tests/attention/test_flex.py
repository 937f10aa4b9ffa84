"""FlexAttention's softmax of log kernel + log mask is masked kernel attention."""

from functools import partial

import pytest
import torch

from tests.zoo import rand
from vit_rpe.attention import functional, masked_linear_attention
from vit_rpe.attention.flex import flex_attention, flex_fits
from vit_rpe.attention.reference import masked_attention
from vit_rpe.features import ELUFeatures, ReLUFeatures
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


def test_serves_inference_on_its_device():
    table, x = torch.rand(3, 7, 9), torch.rand(2, 3, 20, 8)
    mask = Toeplitz(table, (4, 5))
    on_cpu = {"device": "cpu"}  # so that all other conditions are seen
    assert flex_fits(mask, True, x, x, x, **on_cpu)
    assert flex_fits(Bordered(mask, 0), True, x, x, x, **on_cpu)
    assert not flex_fits(mask, True, x, x, x)  # no CUDA here
    assert not flex_fits(mask, False, x, x, x, **on_cpu)
    assert not flex_fits(Dense(torch.rand(20, 20)), True, x, x, x, **on_cpu)
    assert not flex_fits(Toeplitz(torch.rand(2, 3, 7, 9), (4, 5)), True, x, x, x, **on_cpu)
    assert not flex_fits(mask, True, x[0], x[0], x[0], **on_cpu)


@pytest.mark.parametrize("name", ["q", "k", "v", "table", "row"])
def test_does_not_serve_where_a_gradient_is_wanted(name):
    """Also where only the tables learn, on a frozen backbone."""
    tensors = {n: torch.rand(2, 3, 21, 8) for n in "qkv"}
    tensors |= {"table": torch.rand(3, 7, 9), "row": torch.rand(3, 1)}
    tensors[name].requires_grad_()
    mask = Bordered(Toeplitz(tensors["table"], (4, 5)), 1, row=tensors["row"])
    arguments = (mask, True, *(tensors[n] for n in "qkv"))
    assert not flex_fits(*arguments, device="cpu")
    with torch.no_grad():
        assert flex_fits(*arguments, device="cpu")


@pytest.mark.parametrize("feature_map", [ReLUFeatures, ELUFeatures])
def test_is_taken_where_it_fits(monkeypatch, feature_map):
    """The way into it that a GPU takes, on a CPU and without its compiler."""
    calls = []

    def flex(*arguments):
        calls.append(arguments)
        return flex_attention(*arguments, compiled=False)

    monkeypatch.setattr(functional, "flex_fits", partial(flex_fits, device="cpu"))
    monkeypatch.setattr(functional, "flex_attention", flex)
    monkeypatch.setattr(functional, "fits", lambda *_: False)  # the compiled form of a CPU
    mask = Toeplitz(rand(3, 7, 9), (4, 5))
    q, k, v = (rand(2, 3, 20, 8) - 0.5 for _ in range(3))
    phi = feature_map()
    out = masked_linear_attention(q, k, v, mask, features=phi, nonnegative=True)
    torch.testing.assert_close(out, masked_attention(*phi(q, k), v, mask))
    assert len(calls) == 1
