"""Forward passes on devices that are not here: right device, no copy from the host, no waiting.

Fake tensors have a device and no values. What would look at a value raises, what would be copied to
the device or from it is counted. Backward passes on fake CUDA tensors need a stub of its runtime,
and are in tests/tools/bench/test_roofline.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
from torch import nn

from tools.bench.fake_cuda import Counter, cuda_fakes, faked
from vit_rpe.attention import (
    AttentionRequest,
    forget_plans,
    masked_linear_attention,
    plan_attention,
)
from vit_rpe.masks import Toeplitz
from vit_rpe.models import default_cfgs
from vit_rpe.precision import to_float64
from vit_rpe.rpe import DistanceRPE, ExponentialRPE, OffsetRPE

TINY = {"img_size": (48, 64), "depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 5}
IMAGE, VIDEO = "performer_rpe2d_tiny_patch16_224", "performer_rpe3d_tiny_patch16_224"


@pytest.fixture
def without_kernels(monkeypatch) -> Iterator[None]:
    """The forms in PyTorch, as on a GPU for which there are no fused kernels."""
    monkeypatch.setenv("VIT_RPE_TRITON", "0")
    forget_plans()
    yield
    forget_plans()


@contextmanager
def autocast(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast as it would be, were there such a device: `torch.autocast` turns itself off."""
    if dtype is None:
        yield
        return
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


def build(name: str, **options: Any) -> nn.Module:
    """A model on the CPU: its constructor looks at values."""
    frames = {"num_frames": 4} if "3d" in name else {}
    return timm.create_model(name, **{**TINY, **frames, **options})


def images(name: str, size: tuple[int, int] = (48, 64), device: str = "cuda") -> torch.Tensor:
    return torch.empty(2, 3, *([4] if "3d" in name else []), *size, device=device)


def check(
    model: nn.Module, name: str, dtype: torch.dtype | None, size: tuple[int, int] = (48, 64)
) -> Counter:
    with cuda_fakes(), Counter() as counter:
        x = images(name, size)
        faked(model)
        with autocast("cuda", dtype):
            out = model(x)
    assert out.device.type == "cuda" and out.shape == (2, 5)
    assert out.dtype == (dtype or torch.float32)
    assert counter.launches and counter.waits == []
    return counter


@pytest.mark.parametrize("name", default_cfgs)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_every_model(name, dtype) -> None:
    check(build(name).train(), name, dtype)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    (IMAGE, {"path": "explicit", "attn_drop_rate": 0.1}),
    (IMAGE, {"path": "product"}),
    (IMAGE, {"path": "product", "rpe": "distance"}),
    (IMAGE, {"path": "scan", "rpe": "exponential", "rpe_terms": 2}),
    (IMAGE, {"path": "explicit", "rpe": "exponential"}),
    (IMAGE, {"rpe": "distance", "rpe_init": "decay", "rpe_gain": 5.0}),
    (IMAGE, {"border": "learned", "reg_tokens": 2}),
    (IMAGE, {"class_token": False, "global_pool": "avg"}),
    (IMAGE, {"one_sided": (0,)}),
    (IMAGE, {"feature_map": "elu"}),
    (IMAGE, {"feature_map": "favor"}),
    (IMAGE, {"feature_map": "favor_hyperbolic", "path": "product"}),
    (VIDEO, {"rpe": "factorized"}),
    (VIDEO, {"rpe": "exponential", "causal_time": True}),
    (VIDEO, {"rpe": "none", "causal_time": True}),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [IMAGE, "vit_rpe2d_tiny_patch16_224", VIDEO])
def test_fused_kernels_are_taken(name, dtype) -> None:
    counter = check(build(name).train(), name, dtype)
    names = [row.name for row in counter.launches]
    assert names.count("vit_rpe::fused_attention") == 1 and "aten::bmm" not in names


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_choice(name, options) -> None:
    check(build(name, **options).train(), name, torch.bfloat16)


@pytest.mark.usefixtures("without_kernels")
def test_float16_is_summed_in_float32() -> None:
    counter = check(build(IMAGE).train(), IMAGE, torch.float16)
    products = {row.rate for row in counter.launches if row.name == "aten::bmm"}
    assert products == {"float32"}


@pytest.mark.usefixtures("without_kernels")
def test_bfloat16_products_have_bfloat16_operands() -> None:
    counter = check(build(IMAGE).train(), IMAGE, torch.bfloat16)
    assert {row.rate for row in counter.launches if row.name == "aten::bmm"} == {"bfloat16"}


@pytest.mark.parametrize("rpe", ["offset", "distance", "exponential"])
@pytest.mark.parametrize("name", [IMAGE, "vit_rpe2d_tiny_patch16_224", VIDEO])
def test_other_image_sizes(name, rpe) -> None:
    model = build(name, rpe=rpe, dynamic_img_size=True).train()
    check(model, name, torch.bfloat16, (64, 96))


def test_packs() -> None:
    model = build(IMAGE, drop_path_rate=0.0).train()
    with cuda_fakes(), Counter() as counter, autocast("cuda", torch.bfloat16):
        faked(model)
        out = model.forward_packed([torch.empty(3, 48, n, device="cuda") for n in (32, 64)])
    assert out.device.type == "cuda" and out.shape == (2, 5) and counter.waits == []


@pytest.mark.parametrize("kind", [OffsetRPE, DistanceRPE, ExponentialRPE])
def test_masks_of_any_grid_are_made_on_the_device(kind) -> None:
    rpe = kind((4, 5), 3)
    with cuda_fakes(), Counter() as counter:
        faked(rpe)
        for grid in ((4, 5), (7, 3)):
            mask = rpe(grid)
            for matrix in (mask.dense(), mask.rows(1, 4), mask.matmul(mask.dense())):
                assert matrix.device.type == "cuda"
    assert counter.waits == []


def test_padding_is_hidden_on_the_device() -> None:
    layer = build(IMAGE).blocks[0].attn
    with cuda_fakes(), Counter() as counter, autocast("cuda", torch.bfloat16):
        faked(layer)
        x = torch.empty(2, 13, 48, device="cuda")
        keep = torch.empty(2, 13, device="cuda", dtype=torch.bool)
        assert layer(x, keep).dtype == torch.bfloat16
    assert counter.waits == []


@pytest.mark.usefixtures("without_kernels")
def test_pure_bfloat16_on_a_gpu_stays_bfloat16() -> None:
    with cuda_fakes(), Counter() as counter:
        q = torch.empty(2, 3, 20, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mask = Toeplitz(torch.empty(3, 7, 9, device="cuda"), (4, 5), nonnegative=True)
        out = masked_linear_attention(q, q, q, mask, path="explicit")
    assert out.dtype == torch.bfloat16
    assert {row.rate for row in counter.launches if row.name == "aten::bmm"} == {"bfloat16"}


NO_FLOAT64 = ["vit_rpe.masks.toeplitz", "vit_rpe.attention.paths.product"]


@pytest.mark.parametrize("options", [{"path": "explicit"}, {"path": "product"}, {}])
def test_devices_without_float64_have_the_plain_form(options, monkeypatch) -> None:
    for module in NO_FLOAT64:
        monkeypatch.setattr(f"{module}.has_float64", lambda device: False)
    model = build(IMAGE, **options).train()
    counter = check(model, IMAGE, None)
    assert "float64" not in {row.rate for row in counter.launches}


def test_resampling_without_float64_is_done_on_the_host(monkeypatch) -> None:
    monkeypatch.setattr("vit_rpe.rpe.resize.has_float64", lambda device: False)
    rpe = OffsetRPE((4, 5), 3)
    with cuda_fakes(), Counter() as counter:
        faked(rpe)
        assert rpe((7, 5)).offsets.device.type == "cuda"
    assert len(counter.waits) == 2 and "float64" not in {row.rate for row in counter.launches}


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_plans_for_other_devices_take_pytorch(device) -> None:
    mask = Toeplitz(torch.ones(3, 7, 9), (4, 5), nonnegative=True)
    shape: dict[str, Any] = {"batch_shape": (2, 3), "num_features": 16, "num_values": 16}
    kind: dict[str, Any] = {"dtype": torch.float32, "device": torch.device(device)}
    for kernel in ("linear", "softmax"):
        plan = plan_attention(AttentionRequest(mask, **shape, **kind, kernel=kernel))
        assert (plan.path, plan.form) == ("explicit", "torch")
    with pytest.raises(ValueError, match="float64 .* mps does not have"):
        kind["device"] = torch.device("mps")
        plan_attention(AttentionRequest(mask, **shape, **kind, path="product"))


def test_what_needs_float64_says_so(monkeypatch) -> None:
    monkeypatch.setattr("vit_rpe.precision.has_float64", lambda device: False)
    with pytest.raises(ValueError, match="cpu has no float64"):
        to_float64(torch.ones(2))
