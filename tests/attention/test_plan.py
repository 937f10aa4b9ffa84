"""The plan: which path and form a call takes, for the device and batch that it has."""

import copy

import pytest
import timm
import torch

from tests.attention.requests import request
from tests.zoo import ZOO, rand
from vit_rpe.attention import PathCosts, explain, masked_linear_attention, plan, plan_attention
from vit_rpe.attention.cost import default_costs
from vit_rpe.attention.cpu import build
from vit_rpe.attention.explanation import explanation
from vit_rpe.attention.plan import AttentionPlan
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Exponential,
    Mask,
    Ones,
    Scaled,
    Sum,
    Toeplitz,
)

MODEL = "performer_rpe2d_tiny_patch16_224"
needs_native = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")


def toeplitz(n: int) -> Toeplitz:
    return Toeplitz(torch.ones(2 * n - 1, 2 * n - 1), (n, n))


def exponential(n: int) -> Exponential:
    return Exponential(torch.ones(1), torch.ones(1), (n, n))


def planned(mask: Mask, heads: int = 12, width: int = 64, **options) -> AttentionPlan:
    call = request(mask, heads, width, width, **options)
    return plan_attention(call, default_costs(call.device.type))


@needs_native
@pytest.mark.parametrize(
    ("mask", "heads", "width", "path"),
    [
        (toeplitz(14), 12, 64, "explicit"),
        (toeplitz(56), 12, 64, "explicit"),
        (toeplitz(224), 1, 32, "product"),
        (exponential(14), 12, 64, "explicit"),
        (exponential(112), 1, 32, "scan"),
        (Ones(196), 12, 64, "scan"),
        (Causal(20_000), 1, 32, "scan"),
        (Dense(torch.ones(50, 50)), 1, 16, "explicit"),
    ],
)
def test_the_cheapest_path_is_chosen(mask: Mask, heads, width, path):
    assert planned(mask, heads, width).path == path


def test_costs_can_be_given():
    cheap_columns = PathCosts(product_work=1e-9, column_entry=1e-9)
    call = request(toeplitz(14), 1, 16, 16)
    assert plan_attention(call, PathCosts()).path == "explicit"
    assert plan_attention(call, cheap_columns).path == "product"


@pytest.mark.parametrize("side", [14, 28, 56, 63])
def test_a_gpu_takes_explicit_tiles_below_4096_tokens(side):
    for mask in (toeplitz(side), exponential(side), Bordered(exponential(side), 1)):
        for samples in (1, 64):
            assert planned(mask, 12 * samples, device="cuda").path == "explicit"


def test_a_gpu_scans_and_multiplies_long_sequences():
    assert planned(exponential(80), device="cuda").path == "scan"
    assert planned(toeplitz(224), device="cuda").path == "product"
    assert planned(toeplitz(224), device="cuda", wide_range=True).path == "explicit"  # no float64


@needs_native
@pytest.mark.parametrize(
    ("mask", "options", "path", "form"),
    [
        (toeplitz(14), {}, "explicit", "cpu"),
        (Bordered(toeplitz(14), 2), {}, "explicit", "cpu"),
        (Scaled(toeplitz(14), right=torch.ones(196)), {}, "explicit", "cpu"),
        (Scaled(toeplitz(14), right=torch.ones(196)), {"floor": 0.1}, "explicit", "torch"),
        (toeplitz(14), {"dropout": 0.1}, "explicit", "torch"),
        (toeplitz(14), {"budget": 1000}, "explicit", "torch"),
        (toeplitz(14), {"tracing": "compile"}, "explicit", "cpu"),
        (toeplitz(14), {"tracing": "export"}, "explicit", "torch"),
        (toeplitz(14), {"tracing": "transform"}, "explicit", "torch"),
        (toeplitz(14), {"autocast": torch.bfloat16}, "explicit", "torch"),
        (toeplitz(14), {"device": "cuda"}, "explicit", "torch"),
        (exponential(112), {}, "scan", "cpu"),
        (exponential(112), {"tracing": "export"}, "scan", "torch"),
        (Sum([exponential(112), Causal(112**2)]), {}, "scan", "cpu"),
        (Ones(196), {}, "scan", "torch"),
        (Dense(torch.ones(50, 50)), {}, "explicit", "torch"),
    ],
)
def test_the_first_form_that_serves_is_taken(mask, options, path, form):
    found = planned(mask, **options)
    assert (found.path, found.form) == (path, form)
    assert found.reason


def on_cuda(**options) -> AttentionPlan:
    mask = Toeplitz(torch.rand(12, 27, 27), (14, 14), nonnegative=True)
    features = options.pop("features", ReLUFeatures())
    return planned(mask, device="cuda", features=features, **options)


def test_fused_kernels_serve_training_and_inference_on_cuda():
    low = {"autocast": torch.bfloat16}
    for served in (
        {"grad": True},
        {"grad": False},
        {"features": None},
        {"floor": 1e-8},
        {"tracing": "compile"},
        {"width": 8},
    ):
        assert on_cuda(**low, **served).form == "gpu"
    assert on_cuda(tf32=True).form == on_cuda(inputs=torch.bfloat16).form == "gpu"
    for refused in ({"dropout": 0.1}, {"tracing": "export"}, {"width": 160}):
        assert on_cuda(**low, **refused).form == "torch"
    assert on_cuda().form == "torch"  # float32 without TF32


def test_softmax_on_cuda():
    mask = Toeplitz(torch.rand(12, 27, 27), (14, 14), nonnegative=True)
    found = planned(mask, device="cuda", autocast=torch.bfloat16, kernel="softmax")
    assert found.form == "gpu"
    ones = planned(Ones(196), device="cuda", autocast=torch.bfloat16, kernel="softmax")
    assert ones.form == "sdpa"


def test_blocks_are_planned_one_by_one():
    masks = [toeplitz(14), Bordered(exponential(112), 1), Ones(7)]
    pack = BlockDiagonal(masks)
    keep = torch.ones(pack.length, dtype=torch.bool)
    for mask in (pack, Scaled(pack, right=keep)):
        parts = planned(mask).parts
        assert [part.path for part in parts] == [planned(m).path for m in masks]
        assert parts[1].blocks == planned(masks[1]).blocks != ((),)


def test_a_path_that_no_form_has_is_refused():
    with pytest.raises(ValueError, match="path 'scan' needs .* got Toeplitz"):
        planned(toeplitz(3), path="scan")
    with pytest.raises(ValueError, match="path 'product' cannot be exported"):
        planned(toeplitz(3), path="product", tracing="export")
    with pytest.raises(ValueError, match="needs float64 .* which mps does not have"):
        planned(toeplitz(3), path="product", device="mps", wide_range=True)
    assert planned(toeplitz(3), device="mps", wide_range=True).path == "explicit"


def test_an_open_batch_plays_no_part():
    calls = [request(exponential(20), 3, 64, 64, tracing="compile") for _ in range(2)]
    large = copy.copy(calls[1])
    object.__setattr__(large, "batch_shape", (256, 3))
    assert plan_attention(calls[0]) == plan_attention(large)


def test_plans_are_kept_and_tell_calls_apart(monkeypatch):
    made, real = [], plan._plan
    monkeypatch.setattr(plan, "_plan", lambda *x: made.append(x) or real(*x))
    mask = Bordered(Toeplitz(torch.rand(3, 7), (4,)), 1)
    first = request(mask, 3, 8, 8)
    assert plan_attention(first) is plan_attention(request(mask, 3, 8, 8)) and len(made) == 1
    others = [
        request(mask, 3, 8, 8, path="product"),
        request(mask, 3, 8, 8, budget=10),
        request(mask, 3, 8, 8, dropout=0.1),
        request(mask, 3, 8, 8, floor=0.1),
        request(mask, 3, 8, 8, wide_range=True),
        request(mask, 3, 8, 8, grad=False),
        request(mask, 3, 8, 8, autocast=torch.bfloat16),
        request(mask, 3, 8, 8, dtype=torch.float64),
        request(mask, 3, 8, 8, device="cuda"),
        request(mask, 3, 8, 8, kernel="softmax"),
        request(mask, 3, 8, 9),
        request(mask, 3, 9, 8),
        request(mask, 6, 8, 8),
        request(Bordered(Toeplitz(torch.rand(3, 9), (5,)), 1), 3, 8, 8),
        request(Bordered(Toeplitz(torch.rand(3, 7), (4,)), 2), 3, 8, 8),
        request(Scaled(mask, right=torch.ones(5)), 3, 8, 8),
        request(BlockDiagonal([mask]), 3, 8, 8),
    ]
    for count, other in enumerate(others, 2):
        plan_attention(other)
        assert len(made) == count
    values = Dense(torch.rand(3, 3))  # the cost of other masks may depend on their values
    assert plan_attention(request(values, 3, 8, 8)) == plan_attention(request(values, 3, 8, 8))
    assert len(made) == count + 2


def test_a_call_asks_once(monkeypatch):
    asked, real = [], plan_attention

    def count(call, costs=None):
        asked.append(call)
        return real(call, costs)

    monkeypatch.setattr("vit_rpe.attention.functional.plan_attention", count)
    q = torch.rand(2, 3, 5, 4)
    for path in ("auto", "explicit", "product"):
        asked.clear()
        mask = Scaled(Bordered(Toeplitz(torch.rand(3, 7), (4,)), 1), right=torch.rand(5))
        masked_linear_attention(q, q, q, mask, path=path)
        assert len(asked) == 1
    model = timm.create_model(MODEL, depth=3)
    asked.clear()
    model(torch.rand(2, 3, 224, 224)).sum().backward()
    assert len(asked) == 3  # one for each layer, and none in the backward pass


@pytest.mark.parametrize("name", ZOO)
def test_nobody_reads_values(name):
    """Masks on the meta device have none."""
    mask = ZOO[name]()
    real = plan_attention(request(mask, 3, 6, 4), PathCosts())
    for owner, tensor_name in [(m, n) for m in family(mask) for n in m.tensors()]:
        setattr(owner, tensor_name, getattr(owner, tensor_name).to("meta"))
    assert plan_attention(request(mask, 3, 6, 4), PathCosts()) == real


def family(mask: Mask) -> list[Mask]:
    return [mask, *(m for part in mask.parts() for m in family(part))]


class TestModels:
    """A model is planned where it is and for the batch that comes, not where it was built."""

    def test_paths(self):
        def path(**options) -> str:
            return timm.create_model(MODEL, depth=1, **options).path

        assert path() == "explicit" and path(rpe="none") == "scan"
        assert path(path="product") == "product"
        model = timm.create_model(MODEL, depth=1, rpe="exponential")
        model.set_input_size((1792, 1792))
        assert model.path == "scan"

    def test_another_device_has_another_plan(self):
        with torch.device("meta"):
            model = timm.create_model(MODEL, depth=1, rpe="exponential", img_size=800)
        assert model.attention_plan().path == "scan"
        assert model.attention_plan(device=torch.device("cuda")).path == "explicit"
        assert model.attention_plan(64, torch.device("cuda")).path == "explicit"

    @needs_native
    def test_the_batch_counts(self, monkeypatch):
        """A call's own cost is shared by a batch."""
        model = timm.create_model(MODEL, depth=1, rpe="exponential", img_size=224)
        costs = PathCosts(call=1e9, scan_call=1e3)
        monkeypatch.setattr(plan, "default_costs", lambda _: costs)
        monkeypatch.setattr(plan, "device_costs", lambda _: costs)
        assert [model.attention_plan(n).path for n in (1, 100_000)] == ["scan", "explicit"]

    def test_a_path_can_be_fixed(self):
        model = timm.create_model(MODEL, depth=2, rpe="exponential")
        model.path = "scan"
        assert {block.attn.path for block in model.blocks} == {"scan"} and model.path == "scan"
        model.set_input_size((64, 96))
        assert model.path == "scan"
        with pytest.raises(ValueError, match="path must be one of"):
            model.path = "fast"

    def test_a_path_that_masks_do_not_allow_is_refused_when_the_model_is_built(self):
        with pytest.raises(ValueError, match="got Toeplitz"):
            timm.create_model(MODEL, depth=1, path="scan")


class TestExplain:
    def test_says_what_is_taken_and_why_not_the_others(self, capsys):
        explain(timm.create_model(MODEL, depth=3))
        text = capsys.readouterr().out
        assert text.startswith("blocks.0.attn to blocks.2.attn (3 layers): explicit path in ")
        assert "Toeplitz on a (14, 14) grid behind 1 prefix token; 3 heads, 64 features" in text
        assert "not     scan in C++: needs Ones, Causal or Exponential masks, got Toeplitz" in text
        assert (
            "not     explicit in a fused GPU kernel: runs on CUDA and ROCm, "
            "and the tensors are on cpu" in text
        )

    def test_knows_layers_other_devices_and_models_without_masks(self):
        model = timm.create_model("performer_tiny_patch16_224", depth=2)
        assert "Ones of 197 tokens" in explanation(torch.nn.Sequential(model))
        assert "on cuda" in explanation(model, device="cuda", batch_size=64)
        masked = timm.create_model(MODEL, depth=1)
        assert explanation(masked.blocks[0].attn).startswith("MaskedLinearAttention: explicit")
        assert "no attention layer" in explanation(torch.nn.Linear(2, 3))

    @needs_native
    def test_covers_softmax(self):
        model = timm.create_model("vit_rpe2d_tiny_patch16_224", depth=2)
        text = explanation(model)
        assert text.startswith("blocks.0.attn to blocks.1.attn (2 layers): softmax, explicit path")
        assert "in C++, on cpu" in text and "not     explicit in PyTorch's fused attention" in text
        assert "scan" not in text  # forms of the other kernel have nothing to say
        assert "plain PyTorch, on cuda" in explanation(model, device="cuda")


def test_a_sum_of_decays_is_scanned():
    mask = Sum([Exponential(rand(3, 2), rand(3, 2), (9, 7)), Causal(63)])
    q, k, v = (rand(2, 3, 63, 4) for _ in range(3))
    plan = plan_attention(request(mask, 3, 4, 4, path="scan"))
    assert len(plan.blocks) == 2
    out = masked_linear_attention(q, k, v, mask, path="scan")
    torch.testing.assert_close(out, masked_linear_attention(q, k, v, mask, path="explicit"))
