"""What torch knows of the fused operators, and what is kept, repeated, divided and refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.attention.gpu.comparing import promised
from vit_rpe.attention import masked_attention, masked_linear_attention, masked_softmax_attention
from vit_rpe.attention.gpu import launch
from vit_rpe.attention.gpu.places import flat_table, pack_places, places, subset_places
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import Bordered, Dense, Toeplitz

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

# prefix tokens, grid; tables, samples, features, channels
P, GRID, T, S, M, D = 1, (3, 2), 2, 3, 5, 6
LENGTH = P + 6


def inputs(kind: str, bias: bool = False) -> list:
    sizes = (T, S, LENGTH)
    tensors = [torch.randn(*sizes, n) for n in (M, M, D)]
    tensors += [torch.rand(T, 5 * 3), torch.rand(T, 2 * P + P * P)]
    tensors += [torch.randn(*sizes)] if bias else []
    tensors = [x.requires_grad_() for x in tensors]
    options = [kind, list(GRID), P, 0, "relu" if kind == "linear" else "none", True, 0.0, 0.4]
    return [*tensors, *([] if bias else [None]), None, None, *options, 1 << 20]


@pytest.mark.parametrize(("kind", "bias"), [("linear", False), ("softmax", True)])
def test_opcheck(kind, bias):
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.vit_rpe.fused_attention.default, tuple(inputs(kind, bias)), test_utils=tests
    )


def example(softmax: bool) -> tuple:
    table = torch.rand(2, 7, 5).requires_grad_()
    mask = promised(Bordered(Toeplitz(table, (4, 3)), 1))
    q, k, v = (torch.randn(2, 2, 13, n).requires_grad_() for n in (4, 4, 6))
    return q, k, v, table, mask


def attend(softmax: bool, q, k, v, mask):
    if softmax:
        return masked_softmax_attention(q, k, v, mask)
    return masked_linear_attention(q, k, v, mask, features=ReLUFeatures())


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_torch_compile_keeps_the_operator(softmax):
    torch._dynamo.reset()
    q, k, v, table, mask = example(softmax)
    graphs, results = [], []

    def call(q, k, v):
        return attend(softmax, q, k, v, mask)

    def backend(graph, _):
        graphs.append(graph)
        return graph

    for forward in (call, torch.compile(call, fullgraph=True, backend=backend)):
        out = forward(q, k, v)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v, table))])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
    nodes = [str(n.target) for g in graphs for m in g.modules() for n in m.graph.nodes]
    assert "vit_rpe.fused_attention" in nodes


@pytest.mark.slow
def test_inductor_compiles_forward_and_backward():
    torch._dynamo.reset()
    q, k, v, table, mask = example(False)
    out = attend(False, q, k, v, mask)
    expected = torch.autograd.grad(out.square().sum(), (q, k, v, table))
    compiled = torch.compile(lambda q, k, v: attend(False, q, k, v, mask), fullgraph=True)
    found = torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v, table))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_export_takes_the_fallback():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            mask = Toeplitz(self.table, (4, 3))
            return masked_linear_attention(q, k, v, mask, features=ReLUFeatures())

    module = Attend()
    module.register_buffer("table", torch.rand(2, 7, 5))
    tensors = tuple(torch.randn(3, 2, 12, 4) for _ in range(3))
    program = torch.export.export(module, tensors)
    assert not [n for n in program.graph.nodes if "vit_rpe" in str(n.target)]
    torch.testing.assert_close(program.module()(*tensors), module(*tensors), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_fake_tensors(softmax):
    q, k, v, _, mask = example(softmax)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        out = attend(softmax, *fakes, mask)
        grads = torch.autograd.grad(out.sum(), fakes)
    assert out.shape == v.shape and [g.shape for g in grads] == [x.shape for x in (q, k, v)]


def flops(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_flops():
    """Backward: q k^T and g v^T in three kernels (one of them needs no q k^T), and dq, dk, dv."""
    for softmax in (False, True):
        q, k, v, _, mask = example(softmax)
        pairs = 4 * 13**2
        assert flops(lambda: attend(softmax, q, k, v, mask)) == 2 * pairs * 10  # noqa: B023
        out = attend(softmax, q, k, v, mask)
        work = (4 + softmax) * 4 + 4 * 6
        assert flops(lambda: out.sum().backward()) == 2 * pairs * work  # noqa: B023


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_nothing_but_inputs_and_result_is_kept(softmax):
    q, k, v, table, mask = example(softmax)
    kept: dict[int, int] = {}

    def note(x):
        kept[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        attend(softmax, q, k, v, mask)
    tokens = q.numel() + k.numel() + 2 * v.numel() + v[..., 0].numel()
    assert sum(kept.values()) <= tokens + 6 * (table.numel() + 2 * 3)  # a flat table is small


def test_checkpointing_repeats_the_bits():
    q, k, v, table, mask = example(False)
    results = []
    for run in (attend, lambda *x: checkpoint(attend, *x, use_reentrant=False)):
        out = run(False, q, k, v, mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v, table))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_frozen_mask_gets_no_gradient(monkeypatch):
    q, k, v, table, mask = example(False)
    table.requires_grad_(False)
    monkeypatch.setattr(launch.Launcher, "_mask_gradients", lambda *_: pytest.fail("not needed"))
    attend(False, q, k, v, mask).sum().backward()
    assert q.grad is not None and table.grad is None


def test_second_derivatives_are_refused():
    q, k, v, _, mask = example(False)
    out = attend(False, q, k, v, mask)
    with pytest.raises(RuntimeError, match="VIT_RPE_TRITON=0"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_small_budgets_change_only_the_order(kind, monkeypatch):
    """Tables, samples and rows in pieces: one mask, and less than one."""
    grid, p = (70,), 2
    length = 72
    torch.manual_seed(3)
    tokens = [torch.randn(2, 2, length, 4) for _ in range(3)]
    table, border = torch.rand(2, 139), torch.rand(2, 2 * p + p * p)
    pieces = []
    found = []
    original = launch.Launcher._mask_gradient

    def watched(self, tensors, piece, config):
        pieces.append(piece)
        dmask = original(self, tensors, piece, config)
        assert 4 * dmask.numel() <= max(budget, 4 * length * config.bm)
        return dmask

    monkeypatch.setattr(launch.Launcher, "_mask_gradient", watched)
    kept: Any = None
    for budget in (1 << 20, 4 * length**2, 4 * length * 64):
        options = launch.Options(kind, grid, p, nonnegative=True, budget=budget)
        call = launch.Launcher(launch.Inputs(*tokens, table, border), options)
        out, statistic, _ = kept = kept or call.forward()
        found.append(call.backward(out, out, statistic, True)[4:])
    assert len(pieces) == 1 + 2 + 4
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def pair(query, key, flat):
    """The masks (T, S, L, L) of places, with zeros outside the table."""
    index = (query[:, :, None] - key[:, None, :]).long()
    there = (index >= 0) & (index < flat.shape[1])
    return torch.where(there, flat[:, index.clamp(0, flat.shape[1] - 1)], 0.0)


@pytest.mark.parametrize("what", ["subsets", "packs"])
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_places_of_each_sample(what, kind):
    """Kept tokens of each sample behind prefix tokens, and images side by side: no other kernel."""
    grid, p = (4, 5), 2 if what == "subsets" else 0
    if what == "subsets":
        cells = torch.tensor([[0, 19, 7, 8, 4], [3, 2, -1, 12, 11], [1, -1, -1, 9, 18]])
        query, key, span = subset_places(grid, p, cells)
    else:
        query, key, span = pack_places([(2, 3), (4, 5), (3, 1)], grid)
    length = query.shape[1]
    table, border = torch.rand(2, 63) + 0.05, torch.rand(2, 2 * p + p * p) + 0.05
    tokens = [torch.randn(2, 3, length, n) for n in (8, 8, 6)]
    leaves = [x.double().requires_grad_() for x in (*tokens, table, border)]
    q, k, v, *weights = leaves
    flat = flat_table(*weights, places(grid, p, q.device))
    mask = pair(query, key, flat)
    if kind == "linear":
        expected = masked_attention(q.relu(), k.relu(), v, Dense(mask))
    else:
        logits = q @ k.mT * 0.3 + mask.log()
        empty = (mask == 0).all(-1, keepdim=True)
        expected = logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, leaves, grad, materialize_grads=True)
    features = "relu" if kind == "linear" else "none"
    options = launch.Options(kind, grid, p, span, features, scale=0.3, budget=4 * length**2)
    call = launch.Launcher(launch.Inputs(*tokens, table, border, None, query, key), options)
    out, statistic, _ = call.forward()
    dq, dk, dv, _, dtable, dborder = call.backward(grad.float(), out, statistic, True)
    pairs = zip((out, dq, dk, dv, dtable, dborder), (expected, *gradients), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-5)


def test_kernels_start_on_the_device_of_their_tensors(monkeypatch):
    """Triton takes the current device, which is another one where a model is on a second GPU."""
    chosen, started = [], []
    original, run = torch.cuda.device_of, launch.run

    class Guard(original):
        def __enter__(self):
            chosen.append(True)

        def __exit__(self, *error):
            chosen.pop()

    def watched(kernel, *rest):
        started.append((kernel.fn.__name__, bool(chosen)))
        run(kernel, *rest)

    monkeypatch.setattr(torch.cuda, "device_of", Guard)
    monkeypatch.setattr(launch, "run", watched)
    attend(False, *example(False)[:3], example(False)[-1]).sum().backward()
    assert len(started) == 5 and all(inside for _, inside in started)


def test_tensors_that_kernels_cannot_read_are_copied():
    """Steps between channels, and tokens further apart than int32 counts."""
    sizes = (2, 3, 5, 4)
    for strides in ((60, 20, 4, 1), (0, 0, 4, 1), (4, 8, 24, 1)):
        x = torch.empty_strided(sizes, strides, device="meta")
        assert launch._rows_in_memory(x) is x
    for strides in ((60, 20, 1, 5), (0, 0, 1 << 30, 1)):
        x = torch.empty_strided(sizes, strides, device="meta")
        assert launch._rows_in_memory(x).stride() == (60, 20, 4, 1)


def test_a_bias_may_have_any_strides():
    found = []
    for spread in (False, True):
        torch.manual_seed(0)
        arguments = inputs("softmax", bias=True)
        if spread:
            wide = torch.stack([arguments[5].detach(), torch.zeros(T, S, LENGTH)], -1)
            arguments[5] = wide[..., 0].requires_grad_()
        out, *_ = torch.ops.vit_rpe.fused_attention(*arguments)
        found.append([out, *torch.autograd.grad(out.sum(), arguments[:6])])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_autocast_casts_at_the_door():
    """As SDPA does: tensors in float32 are multiplied in bfloat16, and so comes the result."""
    q, k, v, _, mask = example(False)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(False, q, k, v, mask)
    low = attend(False, *(x.bfloat16() for x in (q, k, v)), mask)
    assert out.dtype == torch.float32 and torch.equal(out.bfloat16(), low)
    expected = masked_attention(F.relu(q), F.relu(k), v, mask)
    torch.testing.assert_close(out, expected, rtol=0.05, atol=0.02)
