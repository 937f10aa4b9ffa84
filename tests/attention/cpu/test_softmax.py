"""The compiled softmax: equal to the tiles in PyTorch, known to torch, and small in memory."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.attention.cpu.test_explicit import watch
from tests.attention.test_budgets import peak_megabytes
from tests.zoo import own_tensors, rand, randn, with_tensors
from vit_rpe.attention import masked_softmax, masked_softmax_attention
from vit_rpe.attention.cpu import CpuSoftmax, build
from vit_rpe.attention.plan import forget_plans
from vit_rpe.masks import Bordered, Exponential, Mask, Scaled, Toeplitz

pytestmark = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")


def promised(mask: Mask) -> Mask:
    mask.nonnegative = True
    return mask


MASKS = {
    "sequence": lambda: Toeplitz(rand(3, 2 * 41 - 1), (41,)),
    "image": lambda: Toeplitz(rand(3, 7, 9), (4, 5)),
    "video": lambda: Toeplitz(rand(3, 3, 7, 9), (2, 4, 5)),
    "four axes": lambda: Toeplitz(rand(3, 3, 5, 1, 7), (2, 3, 1, 4)),
    "per sample": lambda: Toeplitz(rand(2, 3, 7, 9), (4, 5)),
    "one table": lambda: Toeplitz(rand(7, 9), (4, 5)),
    "several tiles": lambda: Toeplitz(rand(3, 39, 65), (20, 33)),
    "exponential": lambda: Exponential(rand(3, 2, 2), rand(3, 2), (4, 5), one_sided=(0,)),
    "border of ones": lambda: Bordered(Toeplitz(rand(3, 7, 9), (4, 5)), 2),
    "learned border": lambda: Bordered(
        Toeplitz(rand(2, 3, 39, 51), (20, 26)), 2, rand(3, 2), rand(2), rand(3, 2, 2)
    ),
    "weights of keys": lambda: Scaled(
        promised(Bordered(Toeplitz(rand(3, 39, 51), (20, 26)), 1)), right=rand(2, 1, 521)
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_equals_the_tiles_in_pytorch(name, monkeypatch):
    mask = promised(MASKS[name]())
    leaves = [randn(2, 3, mask.length, n).requires_grad_() for n in (6, 6, 4)]
    leaves += own_tensors(mask)
    with_tensors(mask, tuple(leaves[3:]))
    grad = randn(2, 3, mask.length, 4)
    results, calls = [], watch(monkeypatch, CpuSoftmax)
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(CpuSoftmax, "supports", lambda *_: "is turned off")
            forget_plans()
        out = masked_softmax_attention(*leaves[:3], mask)
        results.append((out, *torch.autograd.grad(out, leaves, grad)))
    assert len(calls) == 1
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


# prefix tokens and grid; tables, samples, channels of q and k, channels of v
PREFIX, GRID, TABLES, SAMPLES, C, D = 1, (3, 2, 2), 2, 3, 5, 6
LENGTH = PREFIX + 12


def operator_inputs(bias: bool) -> list:
    items = (TABLES, SAMPLES, LENGTH)
    tensors = [randn(*items, n) for n in (C, C, D)]
    tensors += [randn(TABLES, 5 * 3 * 3), randn(TABLES, 2 * PREFIX + PREFIX)]
    tensors += [randn(*items)] if bias else []
    tensors = [x.requires_grad_() for x in tensors]
    return [*tensors, *([] if bias else [None]), list(GRID), PREFIX, 0.4]


@pytest.mark.parametrize("bias", [True, False])
def test_opcheck_and_gradients_of_the_operator(bias):
    operator, inputs = torch.ops.vit_rpe.softmax_grid, operator_inputs(bias)
    torch.library.opcheck(operator.default, tuple(inputs))
    tensors, rest = inputs[: 5 + bias], inputs[5 + bias :]
    assert torch.autograd.gradcheck(lambda *x: operator(*x, *rest)[0], tensors, fast_mode=True)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0, 1e4])
def test_the_exponential_is_exact(scale):
    """Logits from tiny differences to thousands, against float64."""
    mask = promised(Toeplitz(torch.rand(3, 39, 65), (20, 33)))
    q, k = (torch.randn(1, 3, 660, 8) for _ in range(2))
    v = torch.randn(1, 3, 660, 5)
    out = masked_softmax_attention(q, k, v, mask, scale=scale)
    expected = masked_softmax(q.double(), k.double(), v.double(), mask, scale)
    reach = max(1.0, scale * 30)  # a logit of float32 has so much less behind its point
    torch.testing.assert_close(out.double(), expected, rtol=2e-6 * reach, atol=2e-6 * reach)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_of_wide_range(dtype):
    ramp = torch.linspace(-80, 80, 27, dtype=dtype)
    mask = promised(Toeplitz((ramp[:, None] / 2 + ramp / 2).exp().requires_grad_(), (14, 14)))
    q, k, v = (torch.randn(2, 196, 16, dtype=dtype) for _ in range(3))
    out = masked_softmax_attention(q, k, v, mask)
    expected = masked_softmax(q.double(), k.double(), v.double(), mask)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    (grad,) = torch.autograd.grad(out.sum(), mask.offsets)
    assert grad.isfinite().all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_number_of_threads_changes_nothing(threads):
    mask = promised(Toeplitz(rand(2, 39, 65).requires_grad_(), (20, 33)))
    q, k, v = (randn(1, 2, mask.length, 3).requires_grad_() for _ in range(3))
    leaves = (q, k, v, mask.offsets)
    expected = torch.autograd.grad(masked_softmax(q, k, v, mask).square().sum(), leaves)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        runs = [
            torch.autograd.grad(masked_softmax_attention(q, k, v, mask).square().sum(), leaves)
            for _ in range(2)
        ]
    finally:
        torch.set_num_threads(before)
    for ours, again, theirs in zip(*runs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
        assert torch.equal(ours, again)


def test_nothing_but_inputs_and_result_is_kept():
    mask = Bordered(promised(Toeplitz(torch.rand(3, 7, 9), (4, 5))), 1)
    q, k, v = (torch.rand(2, 3, 21, 8, requires_grad=True) for _ in range(3))
    kept: dict[int, int] = {}

    def note(x):
        kept[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        masked_softmax_attention(q, k, v, mask)
    assert sum(kept.values()) <= 4 * q.numel() + 2 * 3 * 21 + 3 * (7 * 9 + 3)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [16, 64])
def test_memory_stays_within_the_budget(budget):
    q, k, v = (torch.rand(1, 7200, 16, requires_grad=True) for _ in range(3))
    table = torch.rand(1, 159, 179, requires_grad=True)

    def run() -> None:
        mask = promised(Toeplitz(table, (80, 90)))
        masked_softmax_attention(q, k, v, mask, budget=budget << 20).sum().backward()

    assert peak_megabytes(run) < budget + 8  # the budget, outputs and gradients


def example(dtype: torch.dtype = torch.float64) -> tuple:
    mask = promised(Bordered(promised(Toeplitz(rand(2, 79, 13).to(dtype), (40, 7))), 1))
    return *(randn(3, 2, mask.length, n).to(dtype).requires_grad_() for n in (4, 4, 6)), mask


def test_torch_compile_keeps_the_operator():
    torch._dynamo.reset()
    q, k, v, mask = example()
    leaves = [q, k, v, mask.inner.offsets.requires_grad_()]
    graphs = []

    def attend(q, k, v):
        return masked_softmax_attention(q, k, v, mask)

    def backend(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    results = []
    for forward in (attend, compiled):
        out = forward(q, k, v)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
    nodes = [str(n.target) for g in graphs for m in g.modules() for n in m.graph.nodes]
    assert "vit_rpe.softmax_grid" in nodes


def test_export_takes_the_fallback():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return masked_softmax_attention(q, k, v, promised(Toeplitz(self.table, (40, 7))))

    module = Attend()
    module.register_buffer("table", torch.rand(2, 79, 13))
    inputs = tuple(torch.randn(3, 2, 280, 4) for _ in range(3))
    program = torch.export.export(module, inputs)
    assert not [n for n in program.graph.nodes if "vit_rpe" in str(n.target)]
    torch.testing.assert_close(program.module()(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def test_fake_tensors():
    q, k, v, mask = example()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        out = masked_softmax_attention(*fakes, mask)
        grads = torch.autograd.grad(out.sum(), fakes)
    assert out.shape == v.shape and [g.shape for g in grads] == [x.shape for x in (q, k, v)]


def flops(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_flops():
    q, k, v, mask = example(torch.float32)
    heads, length = 6, mask.length
    assert flops(lambda: masked_softmax_attention(q, k, v, mask)) == 2 * heads * length**2 * 10
    out = masked_softmax_attention(q, k, v, mask)
    assert flops(lambda: out.sum().backward()) == 2 * heads * length**2 * (3 * 4 + 2 * 6)


def test_rows_need_not_be_contiguous():
    q, k, v = (randn(2, 12, 8)[..., ::2].requires_grad_() for _ in range(3))
    mask = promised(Toeplitz(rand(2, 7, 5), (4, 3)))
    out, expected = (f(q, k, v, mask) for f in (masked_softmax_attention, masked_softmax))
    torch.testing.assert_close(out, expected)
    grad = randn(2, 12, 4).mT.contiguous().mT
    ours = torch.autograd.grad(out, (q, k, v), grad)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (q, k, v), grad))
