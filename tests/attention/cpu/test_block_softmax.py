"""The compiled softmax in parts: equal to PyTorch's, known to torch, whatever the threads."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.graphs import rings
from tests.zoo import rand, randn
from vit_rpe.attention import masked_softmax, masked_softmax_attention
from vit_rpe.attention.cpu import CpuBlockSoftmax, build
from vit_rpe.attention.cpu.block_softmax import softmax_in_blocks
from vit_rpe.attention.plan import AttentionRequest
from vit_rpe.graph import WalkKernel, random_walks
from vit_rpe.masks import Dense, Mask

pytestmark = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")

SIZES = (5, 1, 70, 3, 33)  # more rows than a tile, and other than whole vectors
HEADS, C, D, SCALE = 2, 5, 6, 0.4


def operator_inputs(tables: int = 1, requires_grad: bool = True) -> list:
    """Parts out of order, with rows apart and hidden keys."""
    blocks = torch.tensor([(6, 7, 0, 9), (0, 6, 63, 6), (13, 2, 99, 2)])
    bias = randn(tables, 103)
    bias[:, 1::4] = -torch.inf
    bias[:, 63:69] = -torch.inf  # a row without any key
    tensors = [randn(HEADS, 15, n) for n in (C, C, D)] + [bias]
    return [*(x.requires_grad_(requires_grad) for x in tensors), blocks, SCALE]


@pytest.mark.parametrize("tables", [1, HEADS])
def test_operator(tables):
    """Values and gradients are those of the definition; a row without keys is zeros."""
    operator, inputs = torch.ops.vit_rpe.softmax_blocks, operator_inputs(tables)
    torch.library.opcheck(operator.default, tuple(inputs))
    out, expected = operator(*inputs)[0], softmax_in_blocks(*inputs)
    assert out[:, 0].eq(0).all()
    grad = randn(HEADS, 15, D)
    assert_close(out, expected)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs[:4], grad),
        torch.autograd.grad(expected, inputs[:4], grad),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_gradients_have_gradients():
    inputs = operator_inputs()
    bias, rest = inputs[3].detach(), inputs[4:]

    def attend(q, k, v):
        return torch.ops.vit_rpe.softmax_blocks(q, k, v, bias, *rest)[0]

    assert torch.autograd.gradgradcheck(attend, inputs[:3], fast_mode=True)


def walk() -> Mask:
    walks = random_walks(rings(*SIZES), num_nodes=sum(SIZES), num_walks=5, num_steps=3)
    return WalkKernel(walks, 0.7, nonnegative=True).in_parts(SIZES)


def leaves(*lead: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = ((*lead, sum(SIZES), n) for n in (C, C, D))
    return [randn(*shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0, 1e4])
def test_logits_of_any_size(scale):
    q, k, v = leaves(2, 3)
    mask = walk()
    out = masked_softmax_attention(q, k, v, mask, scale=scale)
    expected = masked_softmax(q.double(), k.double(), v.double(), mask, scale)
    reach = max(1.0, scale * 30)  # a logit of float32 has so much less behind its point
    assert_close(out.double(), expected, rtol=2e-6 * reach, atol=2e-6 * reach)


def test_weights_of_wide_range():
    parts = [torch.linspace(-80, 80, n * n).exp()[torch.randperm(n * n)] for n in (20, 30)]
    matrix = torch.block_diag(*(x.view(n, n) for x, n in zip(parts, (20, 30), strict=True)))
    mask = Dense(matrix, nonnegative=True).in_parts((20, 30))
    q, k, v = (torch.randn(2, 50, 4, requires_grad=True) for _ in range(3))
    out = masked_softmax_attention(q, k, v, mask)
    expected = masked_softmax(q.double(), k.double(), v.double(), mask)
    assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_broken_token_spoils_its_own_part_only():
    """And shows as NaN there, not as zeros."""
    q, k, v = (x.detach() for x in leaves(2))
    mask = walk()
    expected = masked_softmax_attention(q, k, v, mask)
    k[:, 6] = torch.nan  # the first token of the third part
    out = masked_softmax_attention(q, k, v, mask)
    assert out[:, 6].isnan().all()
    assert out[:, :6].equal(expected[:, :6]) and out[:, 76:].equal(expected[:, 76:])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_number_of_threads_changes_nothing(threads):
    given, mask = leaves(2, 3), walk()
    grads = []
    before = torch.get_num_threads()
    for number in (1, threads):
        torch.set_num_threads(number)
        try:
            out = masked_softmax_attention(*given, mask)
            grads.append([out, *torch.autograd.grad(out.square().sum(), given)])
        finally:
            torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))


def test_heads_of_a_layer_are_read_where_they_are():
    """Heads side by side in a row, as a layer has them, and a gradient of any strides."""
    x = randn(sum(SIZES), 3 * 3 * C).requires_grad_()
    q, k, v = x.unflatten(-1, (3, 3, C)).movedim((1, 2), (0, 1))
    mask = walk()
    out, expected = (f(q, k, v, mask) for f in (masked_softmax_attention, masked_softmax))
    assert out.transpose(0, 1).is_contiguous()
    grad = randn(3, C, sum(SIZES)).mT
    ours, theirs = (torch.autograd.grad(y, x, grad, retain_graph=True) for y in (out, expected))
    assert_close(ours, theirs)


def test_what_it_does_not_serve():
    form, mask = CpuBlockSoftmax(), walk()
    q, k, v = leaves(2)

    def refusal(mask: Mask = mask, **options) -> str:
        request = AttentionRequest.of(q, k, v, mask, kernel="softmax", **options)
        return form.supports(request) or ""

    assert refusal() == ""
    assert "needs a mask in parts, got Dense" in refusal(Dense(rand(112, 112), nonnegative=True))
    assert "no dropout" in refusal(dropout=0.1)
    assert "more than the budget of 100 bytes for its blocks" in refusal(budget=100)
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast asks for torch.bfloat16" in refusal()
