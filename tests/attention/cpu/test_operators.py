"""What torch knows of the C++ operators: shapes, gradients, FLOPs; compilers see through them."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.zoo import rand, randn
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.cpu import build
from vit_rpe.attention.paths import TorchExplicit, TorchScan
from vit_rpe.attention.plan import forget_plans
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import Bordered, Exponential, Toeplitz

pytestmark = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")

# prefix tokens, slices and cells of the grid; tables, samples, features, channels
PREFIX, SLICES, CELLS, TABLES, SAMPLES, M, D = 1, 3, 4, 2, 3, 5, 6
LENGTH = PREFIX + SLICES * CELLS


def explicit_inputs() -> list:
    items = (TABLES, SAMPLES, LENGTH)
    tensors = [randn(*items, M), randn(*items, M), randn(*items, D)]
    tensors += [rand(TABLES, CELLS * (2 * SLICES - 1) * CELLS), rand(TABLES, 2 * PREFIX + PREFIX)]
    return [*(x.requires_grad_() for x in tensors), PREFIX, SLICES, CELLS]


def scan_inputs() -> list:
    items = (TABLES, SAMPLES, 7 * 5)
    tensors = [randn(*items, M), randn(*items, M), randn(*items, D)]
    tensors += [rand(TABLES, 2, 2), rand(TABLES, 2)]
    return [*(x.requires_grad_() for x in tensors), [7, 5], [3, 2], [0]]


@pytest.mark.parametrize(
    ("name", "make"), [("explicit_grid", explicit_inputs), ("scan_grid", scan_inputs)]
)
def test_opcheck(name, make):
    torch.library.opcheck(getattr(torch.ops.vit_rpe, name).default, tuple(make()))


@pytest.mark.parametrize(
    ("name", "make"), [("explicit_grid", explicit_inputs), ("scan_grid", scan_inputs)]
)
def test_gradients_of_the_operator(name, make):
    operator = getattr(torch.ops.vit_rpe, name)
    inputs = make()
    tensors, sizes = inputs[:5], inputs[5:]

    def differentiable(*tensors):
        out = operator(*tensors, *sizes)
        return out[:2] if isinstance(out, tuple) else out

    assert torch.autograd.gradcheck(differentiable, tensors, fast_mode=True)


def example(path: str, dtype: torch.dtype = torch.float64) -> tuple:
    grid = (150, 9) if path == "scan" else (40, 7)  # long enough to be cut into blocks
    decay = Exponential(rand(2, 1, 2).to(dtype), rand(2, 1).to(dtype), grid)
    mask = Bordered(decay if path == "scan" else decay.toeplitz(), 1)
    q, k, v = (randn(3, 2, mask.length, n).to(dtype).requires_grad_() for n in (4, 4, 6))
    return q, k, v, mask


@pytest.mark.parametrize("path", ["explicit", "scan"])
def test_torch_compile_keeps_the_operator(path):
    """In one graph, with the numbers and gradients of an ordinary call."""
    torch._dynamo.reset()  # a second mask would make the sides of its grid symbols
    q, k, v, mask = example(path)
    own = [mask.inner.rates, mask.inner.weights] if path == "scan" else [mask.inner.offsets]
    leaves = [q, k, v, *(x.requires_grad_() for x in own)]
    graphs = []

    def attend(q, k, v):
        return masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path=path)

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
    assert f"vit_rpe.{path}_grid" in nodes


def test_export_takes_the_fallback():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            mask = Toeplitz(self.table, (40, 7))
            return masked_linear_attention(q, k, v, mask, features=ReLUFeatures())

    module = Attend()
    module.register_buffer("table", torch.rand(2, 79, 13))
    inputs = tuple(torch.randn(3, 2, 280, 4) for _ in range(3))
    program = torch.export.export(module, inputs)
    assert not [n for n in program.graph.nodes if "vit_rpe" in str(n.target)]
    torch.testing.assert_close(program.module()(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", ["explicit", "scan"])
def test_fake_tensors(path):
    q, k, v, mask = example(path)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        out = masked_linear_attention(*fakes, mask, features=ReLUFeatures(), path=path)
        grads = torch.autograd.grad(out.sum(), fakes)
    assert out.shape == v.shape and [g.shape for g in grads] == [x.shape for x in (q, k, v)]


def flops(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_flops_of_the_explicit_path():
    """What the same matrix products have in PyTorch; backward makes q k^T again."""
    q, k, v, mask = example("explicit", torch.float32)
    heads, length = 6, mask.length
    ours = flops(lambda: masked_linear_attention(q, k, v, mask, path="explicit"))
    assert ours == 2 * heads * length**2 * (4 + 6)
    out = masked_linear_attention(q, k, v, mask, path="explicit")
    backward = flops(lambda: out.sum().backward())
    assert backward == 2 * heads * length**2 * (3 * 4 + 2 * 6)


def test_flops_of_the_scan(monkeypatch):
    q, k, v, mask = example("scan", torch.float32)
    ours = flops(lambda: masked_linear_attention(q, k, v, mask, path="scan"))
    explicit = flops(lambda: masked_linear_attention(q, k, v, mask, path="explicit"))
    monkeypatch.setattr("vit_rpe.attention.plan.FORMS", [TorchScan()])
    forget_plans()
    plain = flops(lambda: masked_linear_attention(q, k, v, mask, path="scan"))
    assert 0.5 * plain < ours < min(2 * plain, explicit)
    monkeypatch.setattr("vit_rpe.attention.plan.FORMS", [TorchExplicit()])
    forget_plans()
    slow = flops(lambda: masked_linear_attention(q, k, v, mask, path="explicit"))
    assert explicit == pytest.approx(slow, rel=0.3)


def test_flops_of_a_model_forward_and_backward():
    """Hooks of the counter reach modules, and the backward pass applies features again."""
    ours, timms = (
        timm.create_model(name, depth=2, num_classes=3)
        for name in ("performer_rpe2d_tiny_patch16_224", "vit_tiny_patch16_224")
    )
    x = torch.randn(2, 3, 224, 224)
    counted = [flops(lambda m=model: m(x).sum().backward()) for model in (ours, timms)]
    assert counted[0] == pytest.approx(counted[1], rel=0.05)


def test_second_derivatives_are_refused():
    x = explicit_inputs()
    out = torch.ops.vit_rpe.explicit_grid(*x)[0]
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(out.sum(), x[0], create_graph=True)


def test_rows_need_not_be_contiguous():
    q, k, v = (randn(2, 12, 8)[..., ::2].requires_grad_() for _ in range(3))
    mask = Toeplitz(rand(2, 7, 5), (4, 3))
    out = masked_linear_attention(q.relu(), k.relu(), v, mask, path="explicit")
    weights = (q.relu() @ k.relu().mT) * mask.dense()
    expected = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(out, expected)
    grad = F.pad(randn(2, 12, 4), (0, 4))[..., :4].mT.contiguous().mT  # not row-contiguous
    ours = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (q, k, v), grad))
