"""The fused product for masks F F^T is the definition: values, gradients, and when it refuses."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.graph.graphs import random_graph, random_tree
from tests.zoo import randn
from vit_rpe.attention import masked_attention, masked_linear_attention
from vit_rpe.attention.cpu import CpuGram, build
from vit_rpe.attention.plan import AttentionRequest, plan_attention
from vit_rpe.features import ReLUFeatures
from vit_rpe.graph import RWGNK, Diffusion, WalkKernel
from vit_rpe.masks import Scaled

pytestmark = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")

NODES = 23


def walks(lam: float | torch.Tensor = 0.7) -> WalkKernel:
    """Some nodes are alone, and some entries are far from the diagonal."""
    return RWGNK(num_walks=6, lam=0.7)(random_graph(NODES - 3, 25), num_nodes=NODES).with_values(
        lam=lam
    )


def inputs(m: int, d: int, lead: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    q, k, v = (randn(*lead, NODES, n).to(dtype) for n in (m, m, d))
    return [x.requires_grad_() for x in (q, k, v)]


# whole vectors, parts of them, none; one head, several, samples
@pytest.mark.parametrize(
    ("m", "d", "lead"),
    [(2, 16, (1,)), (5, 7, (3,)), (16, 8, (2,)), (3, 20, (2, 2)), (1, 1, ()), (11, 33, (1,))],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("budget", [None, 1, 15_000])
def test_equals_the_definition(m, d, lead, dtype, budget):
    """Whatever is kept, and in however many slices of features."""
    mask, (q, k, v) = walks(), inputs(m, d, lead, dtype)
    request = AttentionRequest.of(q, k, v, mask, features=ReLUFeatures(), path="product")
    plan = plan_attention(request)
    assert plan.form == "cpu", plan.reason
    out = masked_linear_attention(
        q, k, v, mask, features=ReLUFeatures(), path="product", budget=budget
    )
    expected = masked_attention(q.relu(), k.relu(), v, mask)
    grad = randn(*out.shape).to(dtype)
    found = [out, *torch.autograd.grad(out, [q, k, v], grad)]
    wanted = [expected, *torch.autograd.grad(expected, [q, k, v], grad)]
    exact = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 2e-4}
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, **exact)


def test_a_gradient_of_lam_takes_the_other_form():
    q, k, v = inputs(4, 4, (2,), torch.float64)
    lam = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mask = walks(lam)
    out = masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path="product")
    expected = masked_attention(q.relu(), k.relu(), v, mask)
    found, wanted = (torch.autograd.grad(x.square().sum(), lam)[0] for x in (out, expected))
    assert_close(found, wanted)
    assert found.abs() > 1e-6


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (lambda: Diffusion(random_tree(NODES)), {}, "sparse F, got Diffusion of 23 tokens"),
        (lambda: walks(torch.rand(2)), {}, "needs a constant mask"),
        (lambda: Scaled(walks(), right=torch.rand(NODES)), {}, "with token weights"),
        (walks, {"features": None}, "promise no negative number"),
        (walks, {"floor": 0.1}, "has no floor"),
    ],
)
def test_what_it_does_not_serve(mask, options, reason):
    q, k, v = inputs(4, 4, (2,), torch.float32)
    request = AttentionRequest.of(q, k, v, mask(), **{"features": ReLUFeatures(), **options})
    assert reason in str(CpuGram().supports(request))
    expected = masked_attention(q.relu(), k.relu(), v, request.mask)
    if "floor" not in options:
        out = masked_linear_attention(q.relu(), k.relu(), v, request.mask, path="product")
        assert_close(out, expected.to(out.dtype), rtol=1e-3, atol=1e-4)


def test_many_threads_give_the_same_bits():
    q, k, v = inputs(4, 9, (2,), torch.float32)
    mask, before = walks(), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path="product")
            results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(*results, strict=True))


def operator_inputs(dtype: torch.dtype = torch.float64) -> list:
    tensors = [torch.rand(NODES, 2, n, dtype=dtype).requires_grad_() for n in (3, 3, 5)]
    return [*tensors, *walks().sparse_factor(dtype).csr(), True]


def test_torch_knows_the_operator():
    operator = torch.ops.vit_rpe.sparse_gram
    for dtype in (torch.float64, torch.float32):
        torch.library.opcheck(operator.default, tuple(operator_inputs(dtype)))
    q, k, v, *rest = operator_inputs()
    assert torch.autograd.gradcheck(lambda *x: operator(*x, *rest)[:2], (q, k, v), fast_mode=True)
    with FlopCounterMode(display=False) as counter:
        sums, total, _ = operator(q, k, v, *rest)
        (sums.sum() + total.sum()).backward()
    entries = len(rest[2])
    forward = 2 * 2 * entries * 2 * 3 * 6
    assert counter.get_total_flops() == 3 * forward
    with pytest.raises(RuntimeError, match="path='explicit', or VIT_RPE_NATIVE=0"):
        torch.autograd.grad(operator(q, k, v, *rest)[0].sum(), q, create_graph=True)
