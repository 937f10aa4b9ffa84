"""FlexAttention's softmax of log kernel + log mask is masked kernel attention."""

import pytest
import torch

from tests.attention.requests import request
from tests.zoo import rand
from vit_rpe.attention import functional, masked_linear_attention, plan, plan_attention
from vit_rpe.attention.gpu import FlexExplicit
from vit_rpe.attention.gpu.flex import flex_attention
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


def asks(**changes) -> str | None:
    """What the form says to a call that it would serve on CUDA, but for these changes."""
    mask = changes.pop("mask", Toeplitz(torch.rand(3, 7, 9), (4, 5), nonnegative=True))
    options = {"features": ReLUFeatures(), "grad": False, "device": "cuda", **changes}
    return FlexExplicit().supports(request(mask, 3, 16, 16, **options))


def test_serves_inference_on_cuda():
    table = torch.rand(3, 7, 9)
    mask = Toeplitz(table, (4, 5), nonnegative=True)
    assert asks(mask=mask) is None and asks(mask=Bordered(mask, 0)) is None
    assert "runs on CUDA" in asks(device="cpu")
    assert "no negative value" in asks(features=None)
    assert "no negative value" in asks(mask=Toeplitz(table, (4, 5)))
    assert "needs a Toeplitz mask, got Dense" in asks(mask=Dense(torch.rand(20, 20)))
    several = Toeplitz(torch.rand(2, 3, 7, 9), (4, 5), nonnegative=True)
    assert "a mask per head" in asks(mask=several)
    assert "no gradients" in asks(grad=True)


@pytest.mark.parametrize("name", ["q", "k", "v", "table", "row"])
def test_a_gradient_of_any_tensor_is_seen(name, monkeypatch):
    """Also where only the tables learn, on a frozen backbone."""
    tensors = {n: torch.rand(2, 3, 21, 8) for n in "qkv"}
    tensors |= {"table": torch.rand(3, 7, 9), "row": torch.rand(3, 1)}
    tensors[name].requires_grad_()
    mask = Bordered(Toeplitz(tensors["table"], (4, 5)), 1, row=tensors["row"])
    seen = []
    monkeypatch.setattr(
        functional, "plan_attention", lambda call: seen.append(call.grad) or plan_attention(call)
    )
    masked_linear_attention(*(tensors[n] for n in "qkv"), mask)
    with torch.no_grad():
        masked_linear_attention(*(tensors[n] for n in "qkv"), mask)
    assert seen == [True, False]


@pytest.mark.parametrize("feature_map", [ReLUFeatures, ELUFeatures])
def test_is_taken_where_it_fits(monkeypatch, feature_map):
    """The way into it that a GPU takes, on a CPU and without its compiler."""
    form = FlexExplicit()
    form.device, form.compiled = "cpu", False
    monkeypatch.setattr(plan, "FORMS", [form])
    mask = Toeplitz(rand(3, 7, 9), (4, 5), nonnegative=True)
    q, k, v = (rand(2, 3, 20, 16) - 0.5 for _ in range(3))
    phi = feature_map()
    out = masked_linear_attention(q, k, v, mask, features=phi)
    torch.testing.assert_close(out, masked_attention(*phi(q, k), v, mask))
