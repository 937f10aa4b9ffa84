"""Where the fused kernels run, and what happens where they cannot."""

import warnings

import pytest
import torch

from tests.attention.requests import request
from vit_rpe.attention import masked_attention, masked_linear_attention, plan_attention
from vit_rpe.attention.gpu import FusedLinear, availability
from vit_rpe.attention.plan import forget_plans
from vit_rpe.features import PositiveRandomFeatures, ReLUFeatures, SquareFeatures
from vit_rpe.masks import Bordered, Dense, Exponential, Scaled, Toeplitz
from vit_rpe.precision import tf32_allowed

TABLE = torch.rand(3, 7, 9)
MASK = Toeplitz(TABLE, (4, 5), nonnegative=True)


def asks(**changes) -> str | None:
    """What the form says to a call on CUDA that it would serve, but for these changes."""
    mask = changes.pop("mask", MASK)
    options = {"features": ReLUFeatures(), "device": "cuda", "autocast": torch.bfloat16, **changes}
    return FusedLinear().supports(request(mask, 3, 16, 16, **options))


def test_serves_training_and_inference_on_cuda():
    for grad in (True, False):
        assert asks(grad=grad) is None
    assert asks(mask=Bordered(MASK, 2)) is None
    assert asks(mask=Bordered(MASK, 2, torch.rand(2))) is None
    assert asks(mask=Scaled(MASK, right=torch.rand(2, 1, 20))) is None
    assert asks(mask=Exponential(torch.rand(1), torch.rand(1), (4, 5))) is None
    assert asks(features=None) is None and asks(floor=0.5) is None
    assert asks(tracing="compile") is None
    assert asks(autocast=None, inputs=torch.float16) is None
    assert asks(autocast=None, tf32=True) is None
    assert asks(autocast=torch.float16, features=SquareFeatures()) is None


def test_refusals():
    assert "tensors are on cpu" in asks(device="cpu")
    assert "tensors are on mps" in asks(device="mps")
    assert "got Dense" in asks(mask=Dense(torch.rand(20, 20)))
    assert "dropout" in asks(dropout=0.1)
    assert "exported" in asks(tracing="export")
    assert "torch.func" in asks(tracing="transform")
    assert "TF32 only" in asks(autocast=None)
    assert "not torch.float64" in asks(dtype=torch.float64)
    assert "gradients of the mask" in asks(budget=1000)
    assert asks(budget=1000, grad=False) is None
    assert "no floor under" in asks(floor=0.5, mask=Scaled(MASK, right=torch.rand(2, 1, 20)))
    features = PositiveRandomFeatures(16, 16)
    assert "range" in asks(autocast=torch.float16, features=features, wide_range=True)
    empty = request(MASK, 0, 16, 16, device="cuda", autocast=torch.bfloat16)
    assert "nothing to compute" in FusedLinear().supports(empty)
    wide = request(MASK, 3, 129, 16, device="cuda", autocast=torch.bfloat16)
    assert "at most 128" in FusedLinear().supports(wide)


@pytest.fixture
def matmul():
    """The switches of float32 products, set back after the test."""
    switches = torch.backends.cuda.matmul
    yield switches
    if hasattr(switches, "fp32_precision"):
        switches.fp32_precision = "none"
    switches.allow_tf32 = False


def test_tf32_is_read_whichever_way_it_was_allowed(matmul):
    assert not tf32_allowed("cuda") and not tf32_allowed("cpu")
    matmul.allow_tf32 = True
    assert tf32_allowed("cuda") and not tf32_allowed("cpu")
    torch.set_float32_matmul_precision("highest")
    assert not tf32_allowed("cuda")
    if hasattr(matmul, "fp32_precision"):  # torch 2.9 and later
        matmul.fp32_precision = "tf32"
        assert tf32_allowed("cuda")


def test_nothing_is_tried_while_a_graph_is_captured(monkeypatch):
    """A trial waits for the device, which ends a capture with an error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(availability, "probed", lambda *_: pytest.fail("tried"))
    asked = ("linear", torch.device("cuda", 0), torch.bfloat16, 16, 16, "relu", True)
    assert availability.no_kernel(*asked) is None


def test_may_be_turned_off(monkeypatch):
    monkeypatch.setenv("VIT_RPE_TRITON", "0")
    assert asks() == "is turned off by VIT_RPE_TRITON=0"


def test_without_triton(monkeypatch):
    monkeypatch.setattr(availability, "has_triton", lambda: False)
    assert asks() == "needs Triton"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    availability._old_device.cache_clear()
    with pytest.warns(UserWarning, match="VIT_RPE_TRITON=0 silences"):
        assert "not installed" in asks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "not installed" in asks()
    availability._old_device.cache_clear()


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((8, 0), True)])
def test_old_devices(monkeypatch, capability, served):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    availability._old_device.cache_clear()
    if served:
        assert availability._old_device(0) is None
    else:
        with pytest.warns(UserWarning, match="compute capability 8.0"):
            assert "7.5" in availability._old_device(0)
    availability._old_device.cache_clear()


@pytest.fixture
def probing(interpreted, monkeypatch):
    """Kernels are tried on a few tokens, as on a GPU that has not been seen before."""
    availability.probed.cache_clear()

    def probe(*arguments):
        return availability.probed(*arguments)

    monkeypatch.setattr(availability, "no_kernel", probe)
    yield
    availability.probed.cache_clear()


def call() -> torch.Tensor:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 20, 16) for _ in range(3))
    out = masked_linear_attention(q, k, v, MASK, features=ReLUFeatures())
    torch.testing.assert_close(out, masked_attention(q.relu(), k.relu(), v, MASK))
    return out


@pytest.mark.usefixtures("probing")
def test_kernels_that_work_are_tried_once(monkeypatch):
    asked = request(MASK, 3, 16, 16, features=ReLUFeatures())
    with torch.no_grad():
        assert plan_attention(asked).form == "gpu"
    monkeypatch.setattr(availability, "_small_call", lambda *_: pytest.fail("tried twice"))
    forget_plans()
    assert plan_attention(asked).form == "gpu"
    call()


@pytest.mark.usefixtures("probing")
def test_kernels_that_fail_warn_once_and_are_left_alone(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of resource: registers\nand a long story")

    monkeypatch.setattr("vit_rpe.attention.gpu.launch.run", broken)
    with pytest.warns(UserWarning, match="could not be compiled .out of resource: registers."):
        call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forget_plans()
        call()
    asked = request(MASK, 3, 16, 16, features=ReLUFeatures())
    assert plan_attention(asked).form != "gpu"
