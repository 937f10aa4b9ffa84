import pytest
import torch
import torch.fx
from timm.layers.attention import Attention

from vit_rpe.attention.reference import masked_attention
from vit_rpe.features import PositiveRandomFeatures, ReLUFeatures
from vit_rpe.layers import MaskedLinearAttention, MaskedSoftmaxAttention
from vit_rpe.masks import Bordered
from vit_rpe.rpe import DistanceRPE, ExponentialRPE, GridRPE, OffsetRPE, TokenLayout

GRID, PREFIX, DIM, HEADS = (3, 4), 2, 24, 3
LENGTH = PREFIX + 12
PATHS = ["auto", "explicit", "product", "scan"]


def make_rpe(path: str = "auto") -> GridRPE:
    return (ExponentialRPE if path == "scan" else OffsetRPE)(GRID, HEADS, init="decay")


def linear(path: str = "auto", **options) -> MaskedLinearAttention:
    return MaskedLinearAttention(
        DIM,
        HEADS,
        rpe=make_rpe(path),
        num_prefix_tokens=PREFIX,
        path=path,
        qkv_bias=True,
        **options,
    )


def softmax(**options) -> MaskedSoftmaxAttention:
    return MaskedSoftmaxAttention(
        DIM, HEADS, rpe=make_rpe(), num_prefix_tokens=PREFIX, qkv_bias=True, **options
    )


def heads(layer: Attention, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return layer.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge(layer: Attention, out: torch.Tensor) -> torch.Tensor:
    return layer.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("path", PATHS)
def test_linear_layer_is_masked_attention(path):
    layer = linear(path)
    x = torch.randn(2, LENGTH, DIM)
    q, k, v = heads(layer, x)
    mask = Bordered(layer.rpe(), PREFIX)
    expected = merge(layer, masked_attention(q.relu(), k.relu(), v, mask))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_softmax_layer_adds_the_log_of_the_mask():
    layer = softmax()
    x = torch.randn(2, LENGTH, DIM)
    q, k, v = heads(layer, x)
    logits = q @ k.mT * layer.scale + Bordered(layer.rpe(), PREFIX).dense().log()
    torch.testing.assert_close(layer(x), merge(layer, logits.softmax(-1) @ v))


def test_softmax_layer_without_rpe_is_timms():
    plain, ours = Attention(DIM, HEADS), MaskedSoftmaxAttention(DIM, HEADS)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(2, 7, DIM)
    torch.testing.assert_close(ours(x), plain(x))
    torch.testing.assert_close(ours(x, is_causal=True), plain(x, is_causal=True))


@pytest.mark.parametrize("rpe", [OffsetRPE, DistanceRPE, ExponentialRPE])
def test_structural_zeros_have_finite_gradients_under_softmax(rpe):
    layer = MaskedSoftmaxAttention(DIM, HEADS, rpe=rpe(GRID, HEADS, one_sided=(0,)))
    x = torch.randn(2, 12, DIM, requires_grad=True)
    out = layer(x)
    (grad,) = torch.autograd.grad(out[:, :4].sum(), x, retain_graph=True)
    assert (grad[:, 4:] == 0).all()  # the first row of the grid does not see the later ones
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("make", [linear, softmax])
def test_padded_tokens_leave_no_trace(make):
    layer = make()
    keep = torch.rand(2, LENGTH) < 0.7
    x = torch.randn(2, LENGTH, DIM)
    grads = []
    for filler in (0.0, torch.nan):
        filled = x.masked_fill(~keep[..., None], filler)
        out = layer(filled, attn_mask=keep[:, None, None, :])[keep]
        grads.append([out, *torch.autograd.grad(out.sum(), list(layer.parameters()))])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*grads, strict=True))
    assert torch.equal(layer(filled, attn_mask=keep)[keep], out)


def test_padding_with_random_features_equals_the_shorter_sequence():
    layer = MaskedLinearAttention(DIM, HEADS, features=PositiveRandomFeatures(8, 16))
    x = 3 * torch.randn(1, 9, DIM)
    keep = torch.arange(9)[None] < 5
    torch.testing.assert_close(layer(x, attn_mask=keep)[:, :5], layer(x[:, :5]))


def test_causal_without_rpe():
    layer = MaskedLinearAttention(DIM, HEADS)
    x = torch.randn(1, 6, DIM)
    changed = x.clone()
    changed[:, 4] += 1
    torch.testing.assert_close(
        layer(x, is_causal=True)[:, :4], layer(changed, is_causal=True)[:, :4]
    )


def test_dropout_acts_in_training_only():
    layer = linear("explicit", attn_drop=0.5)
    x = torch.randn(2, LENGTH, DIM)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x))


def test_timms_arguments_are_honoured():
    layer = linear(qk_norm=True, scale_norm=True, gated=True, norm_layer=torch.nn.LayerNorm)
    layer(torch.randn(2, LENGTH, DIM)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear("quick"), "one of auto, explicit"),
        (lambda: linear("product", attn_drop=0.1), "attn_drop needs path='explicit'"),
        (lambda: linear()(torch.randn(1, LENGTH, DIM), is_causal=True), "one_sided"),
        (lambda: linear()(torch.randn(1, LENGTH + 1, DIM)), "12 grid tokens, but 13 came after 2"),
        (
            lambda: linear()(torch.randn(1, LENGTH, DIM), attn_mask=torch.zeros(LENGTH, LENGTH)),
            "attn_mask can only hide keys",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.softmax = linear(), softmax()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.linear(x))


def test_fx_records_attention_as_one_call():
    model = Stack()
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(2, LENGTH, DIM)
    assert torch.equal(traced(x), model(x))
    calls = {node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"}
    assert "_attend" in calls and "matmul" not in calls


def test_state_survives_a_round_trip():
    first, second = (linear(features=PositiveRandomFeatures(DIM // HEADS)) for _ in range(2))
    x = torch.randn(2, LENGTH, DIM)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_compiles(path):
    layer = linear(path, features=ReLUFeatures())
    x = torch.randn(2, LENGTH, DIM)
    expected = layer(x)
    expected.square().sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    compiled = torch.compile(layer, fullgraph=path in ("explicit", "scan"))
    out = compiled(x)
    out.square().sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for p, grad in zip(layer.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_export_with_a_dynamic_batch():
    layer = linear("explicit").eval()
    x = torch.randn(3, LENGTH, DIM)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: batch}})
    y = torch.randn(5, LENGTH, DIM)
    torch.testing.assert_close(program.module()(y), layer(y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_padded_keys_leave_no_trace(floor):
    layer = MaskedLinearAttention(8, 2, floor=floor)
    x = torch.randn(1, 5, 8)
    padded = torch.cat([x, torch.randn(1, 4, 8)], 1)
    keep = torch.tensor([[True] * 5 + [False] * 4])
    torch.testing.assert_close(layer(padded, attn_mask=keep)[:, :5], layer(x))


@pytest.mark.parametrize("make", [linear, softmax])
def test_a_layout_carries_grids_and_kept_keys(make):
    layer = make()
    grids = ((2, 3), (3, 4))
    x = torch.randn(2, 2 * PREFIX + 18, DIM)
    keep = torch.rand(2, x.shape[1]) < 0.8
    packed = layer(x, attn_mask=TokenLayout(grids, keep))
    parts = zip(*(t.split([PREFIX + 6, PREFIX + 12], 1) for t in (x, keep)), grids, strict=True)
    alone = [layer(part, TokenLayout((grid,), kept)) for part, kept, grid in parts]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer(x[:, :LENGTH], TokenLayout()), layer(x[:, :LENGTH]))
