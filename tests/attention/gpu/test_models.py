"""Models of two layers, of each family: the fused kernels give what the C++ or PyTorch forms do."""

import pytest
import timm
import torch

from vit_rpe.attention.explanation import explanation
from vit_rpe.attention.plan import forget_plans

MODELS = {
    "offset": ("performer_rpe2d_tiny_patch16_224", {}),
    "exponential, no class token": (
        "performer_rpe2d_tiny_patch16_224",
        {"rpe": "exponential", "class_token": False, "global_pool": "avg"},
    ),
    "learned border, registers": (
        "performer_rpe2d_tiny_patch16_224",
        {"border": "learned", "reg_tokens": 2, "feature_map": "elu"},
    ),
    "softmax": ("vit_rpe2d_tiny_patch16_224", {}),
    "topvit": ("topvit_base_patch16_224", {"embed_dim": 48, "num_heads": 3}),
    "video": ("performer_rpe3d_tiny_patch16_224", {"num_frames": 4, "img_size": 32}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*Dynamo detected.*")
def test_models(name, monkeypatch):
    model_name, options = MODELS[name]
    options = {"img_size": 48, "depth": 2, "num_classes": 7, **options}
    model = timm.create_model(model_name, **options).train()
    with torch.no_grad():  # a mask that is not symmetric
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    clip = "num_frames" in options
    side = options["img_size"]
    images = torch.randn(2, 3, *([options["num_frames"]] if clip else []), side, side)
    results, forms = [], []
    for switch in ("0", "1"):
        monkeypatch.setenv("VIT_RPE_TRITON", switch)
        forget_plans()
        forms.append(explanation(model))
        logits = model(images)
        parameters = dict(model.named_parameters())
        torch.manual_seed(4)
        loss = (logits * torch.randn_like(logits)).sum()
        grads = torch.autograd.grad(loss, parameters.values(), materialize_grads=True)
        results.append((logits.detach(), dict(zip(parameters, grads, strict=True))))
    assert "path in a fused GPU kernel" not in forms[0]
    assert forms[1].startswith("blocks.0.attn to blocks.1.attn") and "fused GPU" in forms[1]
    (logits, gradients), (fused_logits, fused_gradients) = results
    assert (fused_logits - logits).abs().max() <= 1e-5 * logits.abs().max()
    largest = max(g.abs().max() for g in gradients.values())
    for parameter, expected in gradients.items():
        difference = (fused_gradients[parameter] - expected).abs().max()
        assert difference <= 1e-4 * expected.abs().max() + 1e-7 * largest, parameter


def test_autocast_trains(monkeypatch):
    """In bfloat16 a model takes the kernels, and its gradients are finite and near."""
    monkeypatch.setenv("VIT_RPE_TRITON", "1")
    model = timm.create_model(
        "performer_rpe2d_tiny_patch16_224", img_size=32, depth=2, num_classes=7
    )
    images = torch.randn(2, 3, 32, 32)
    table = model.blocks[0].attn.rpe
    grads = []
    for enabled in (False, True):
        forget_plans()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(images).float().square().mean()
        (grad,) = torch.autograd.grad(loss, next(table.parameters()))
        grads.append(grad)
    assert grads[1].isfinite().all()
    assert (grads[1] - grads[0]).norm() <= 0.1 * grads[0].norm()
