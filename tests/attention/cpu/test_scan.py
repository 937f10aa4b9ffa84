"""The compiled scan: equal to the definition, whatever is cut, and to the scan in plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from tests.attention.cpu.test_explicit import watch
from tests.zoo import rand, randn
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.cpu import CpuScan, build
from vit_rpe.attention.cpu.scan import scan_on_grid, state_cells
from vit_rpe.attention.paths import TorchScan
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import Bordered, Exponential

pytestmark = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")

# grid, blocks, one-sided axes, leading dims, leading dims of the mask
CUTS = {
    "sequence": ((11,), (4,), (), (3,), (3,)),
    "causal sequence": ((9,), (4,), (0,), (3,), ()),
    "uncut": ((4, 5), (), (), (2, 3), (3,)),
    "one cut, a short last block": ((7, 5), (3,), (), (2, 3), (3,)),
    "two cuts": ((7, 5), (3, 2), (), (2, 3), (3,)),
    "causal image": ((7, 5), (3, 2), (0, 1), (2,), ()),
    "blocks of one slice": ((5, 3), (1, 1), (), (2,), (2,)),
    "one block": ((3, 7), (3, 4), (), (2,), (2,)),
    "video": ((4, 5, 6), (2, 2, 4), (), (2, 2), (2,)),
    "causal video, two cuts": ((4, 5, 6), (2, 2), (0,), (2, 2), (2, 2)),
    "video, one cut": ((4, 5, 6), (3,), (1,), (2,), (2,)),
}


def example(name):
    grid, blocks, one_sided, lead, masks = CUTS[name]
    length = torch.Size(grid).numel()
    q, k = (randn(*lead, length, 4).requires_grad_() for _ in range(2))
    v = randn(*lead, length, 3).requires_grad_()
    rates, weights = rand(*masks, 2, len(grid)), randn(*masks, 2)
    weights[..., 0] = 0.0  # a term without weight must learn, too
    leaves = [q, k, v, rates.requires_grad_(), weights.requires_grad_()]
    return leaves, Exponential(rates, weights, grid, one_sided), blocks


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("name", CUTS)
def test_equals_the_definition(name, threads):
    leaves, mask, blocks = example(name)
    q, k, v = leaves[:3]
    values = F.pad(v, (0, 1), value=1.0)
    expected = ((q @ k.mT) * mask.dense()) @ values
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = scan_on_grid(q, k, values, mask, blocks)
        grad = randn(*out.shape)
        grads = torch.autograd.grad(out, leaves, grad)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, leaves, grad))


@pytest.mark.parametrize("name", ["two cuts", "causal video, two cuts"])
def test_gradients(name):
    leaves, mask, blocks = example(name)

    def run(q, k, v, rates, weights):
        moved = Exponential(rates, weights, mask.grid, mask.one_sided)
        return scan_on_grid(q, k, F.pad(v, (0, 1), value=1.0), moved, blocks)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


def test_columns_shared_by_threads_and_strided_inputs():
    grid = (13, 9)
    mask = Exponential(torch.tensor([[0.1, 0.3]]), torch.ones(1), grid)
    q, k = (torch.rand(117, 2, 8).transpose(0, 1)[1:] for _ in range(2))
    v = F.pad(torch.rand(2, 40, 117).mT[:1], (0, 1), value=1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        out = scan_on_grid(q, k, v, mask, (4, 3))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(out, ((q @ k.mT) * mask.dense()) @ v)


def test_a_small_budget_takes_the_plain_scan(monkeypatch):
    mask = Exponential(rand(2, 1, 2), rand(2, 1), (12, 10))
    q, k, v = (rand(2, 120, 4).requires_grad_() for _ in range(3))
    monkeypatch.setattr(TorchScan, "blocks", lambda *_: ((4, 4),))
    calls = watch(monkeypatch, CpuScan)
    whole = masked_linear_attention(q, k, v, mask, path="scan")
    assert state_cells((12, 10), (4, 4)) * 4 * 5 * 8 > 1000
    small = masked_linear_attention(q, k, v, mask, path="scan", budget=1000)
    assert len(calls) == 1
    torch.testing.assert_close(small, whole)


def test_little_is_kept_for_the_backward_pass():
    mask = Bordered(Exponential(torch.rand(3, 1, 2), torch.ones(3, 1), (20, 30)), 1)
    q, k, v = (torch.rand(2, 3, 601, 8, requires_grad=True) for _ in range(3))
    kept: dict[int, int] = {}

    def note(x):
        kept[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path="scan")
    assert sum(kept.values()) <= 4 * q.numel()


def test_an_empty_batch():
    rates = torch.rand(3, 1, 2, requires_grad=True)
    mask = Exponential(rates, torch.ones(3, 1), (12, 10))
    q = torch.rand(0, 3, 120, 8, requires_grad=True)
    out = masked_linear_attention(q, q, q, mask, path="scan")
    out.sum().backward()
    assert out.shape == q.shape and (rates.grad == 0).all()


@pytest.mark.parametrize("path", ["explicit", "scan"])
def test_inference_mode_with_several_threads(path):
    mask = Exponential(torch.rand(3, 1, 2), torch.ones(3, 1), (12, 10))
    q, k, v = torch.rand(3, 2, 3, 120, 8)
    expected = masked_linear_attention(q, k, v, mask, path="product")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch.inference_mode():
            out = masked_linear_attention(q + 0, k + 0, v + 0, mask, path=path)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
