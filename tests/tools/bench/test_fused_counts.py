"""What the roofline says of the fused kernels, held against the kernels that really start."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("no Triton here", allow_module_level=True)

from tools.bench.fake_cuda import fused
from vit_rpe.attention.gpu import launch


def inputs(prefix: int, softmax: bool) -> tuple[list, list]:
    length = prefix + 20
    tokens = [torch.randn(3, 2, length, n) for n in (8, 8, 16)]
    masks = [torch.rand(3, 63), torch.rand(3, 2 * prefix + prefix**2), None, None, None]
    options = ["softmax" if softmax else "linear", [4, 5], prefix, 0, "none", True, 0.0, 1.0, 1000]
    return [*tokens, *masks], options


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_kernels_of_a_call(softmax, monkeypatch):
    tensors, options = inputs(0, softmax)
    started = []
    original = launch.run
    monkeypatch.setattr(launch, "run", lambda *x: started.append(x[0].fn.__name__) or original(*x))
    call = launch.Launcher(launch.Inputs(*tensors), launch.Options(*options))
    out, statistic, flat = call.forward()
    counted = fused._forward(*tensors, *options, out=(out, statistic, flat))
    assert counted["kernels"] == len(started) + softmax == 1 + softmax  # and logarithms
    started.clear()
    found = call.backward(out, out, statistic, True)
    counted = fused._backward(out, out, statistic, flat, *tensors, *options, True, out=found)
    assert counted["kernels"] == len(started)
    pieces = started.count("mask_kernel")
    assert pieces > 1 and started.count("table_kernel") == pieces
    frozen = fused._backward(out, out, statistic, flat, *tensors, *options, False, out=found)
    assert frozen["kernels"] == 2 and frozen["flops"] < counted["flops"]


def test_operations_are_those_of_whole_tiles():
    """20 tokens are a tile of 64 queries by 32 keys, whose 8 + 16 channels are multiplied."""
    tensors, options = inputs(0, False)
    low = [x.bfloat16() for x in tensors[:3]]
    counted = fused._forward(*low, *tensors[3:], *options, out=())
    assert counted["flops"] == 2 * 6 * 64 * 32 * (8 + 16)
