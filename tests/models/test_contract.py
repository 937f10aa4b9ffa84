"""What timm asks of a model, on every registered name, at reduced depth and resolution."""

from math import prod

import pytest
import timm
import torch
from timm.models import save_for_hf
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import fx

import vit_rpe
from vit_rpe.models import MaskedViT, default_cfgs

NAMES = list(default_cfgs)
SMALL = {"img_size": (48, 64), "depth": 2}
SMALL_VIDEO = {**SMALL, "num_frames": 4, "embed_dim": 48, "num_heads": 3}


def is_video(name: str) -> bool:
    return "3d" in name


def small(name: str) -> dict:
    return SMALL_VIDEO if is_video(name) else SMALL


def make(name: str, **options) -> MaskedViT:
    return timm.create_model(name, **{**small(name), **options})


def inputs(name: str, channels: int = 3) -> torch.Tensor:
    """Two images, or two clips of 4 frames: a grid of 3 x 4 or 2 x 3 x 4."""
    return torch.randn(2, channels, *([4] if is_video(name) else []), 48, 64)


def grid(name: str) -> tuple[int, ...]:
    return (2, 3, 4) if is_video(name) else (3, 4)


@pytest.mark.parametrize("name", NAMES)
class TestEveryModel:
    def test_is_registered(self, name):
        assert name in timm.list_models(module="performer_rpe")

    def test_forward(self, name):
        out = make(name).eval()(inputs(name))
        assert out.shape == (2, 1000) and out.isfinite().all()

    def test_every_parameter_gets_a_gradient(self, name):
        model = make(name, num_classes=7)
        model(inputs(name)).square().mean().backward()
        missing = [n for n, p in model.named_parameters() if p.grad is None]
        assert not missing
        assert all(p.grad.isfinite().all() for p in model.parameters())

    def test_heads_and_features(self, name):
        model = make(name, num_classes=5).eval()
        x = inputs(name)
        features = model.forward_features(x)
        assert features.shape == (2, 1 + prod(grid(name)), model.num_features)
        torch.testing.assert_close(model.forward_head(features), model(x))
        pre_logits = model.forward_head(features, pre_logits=True)
        assert pre_logits.shape == (2, model.head_hidden_size)
        model.reset_classifier(0)
        torch.testing.assert_close(model(x), pre_logits)
        assert make(name, num_classes=0)(x).shape == pre_logits.shape
        model.reset_classifier(0, "")
        assert model(x).shape == features.shape

    def test_names_of_the_cfg_exist(self, name):
        model = make(name)
        state = model.state_dict()
        cfg = model.default_cfg
        assert f"{cfg['classifier']}.weight" in state and f"{cfg['first_conv']}.weight" in state
        assert cfg["input_size"] == (3, 224, 224)

    def test_other_heads_and_channels(self, name):
        for options in [
            {"in_chans": 1, "global_pool": "avg", "class_token": False},
            {"reg_tokens": 3, "no_embed_class": True, "qk_norm": True, "init_values": 1e-3},
            {"pos_embed": "none", "global_pool": "map", "drop_path_rate": 0.1, "depth": 1},
            {"patch_size": 8, "pre_norm": True, "scale_attn_norm": True, "scale_mlp_norm": True},
        ]:
            model = make(name, num_classes=3, **options)
            out = model(inputs(name, options.get("in_chans", 3)))
            assert out.shape == (2, 3) and out.isfinite().all()

    def test_intermediates(self, name):
        model = make(name).eval()
        x = inputs(name)
        final, parts = model.forward_intermediates(x, indices=2, norm=True)
        features = model.forward_features(x)
        torch.testing.assert_close(final, features)
        spatial = features[:, 1:].transpose(1, 2).unflatten(-1, grid(name))
        assert len(parts) == 2
        torch.testing.assert_close(parts[-1], spatial)

    def test_intermediate_layers(self, name):
        model = make(name).eval()
        x = inputs(name)
        (layer,) = model.get_intermediate_layers(x, n=1, reshape=True, norm=True)
        torch.testing.assert_close(layer, model.forward_intermediates(x, 1, norm=True)[1][0])

    def test_features_only(self, name):
        model = make(name, features_only=True, out_indices=(0, 1)).eval()
        outputs = model(inputs(name))
        assert [o.shape[2:] for o in outputs] == [grid(name), grid(name)]
        assert model.feature_info.channels() == [o.shape[1] for o in outputs]

    def test_gradient_checkpointing_changes_nothing(self, name):
        model = make(name, num_classes=4)
        x = inputs(name)
        plain = model(x)
        grads = torch.autograd.grad(plain.sum(), list(model.parameters()))
        model.set_grad_checkpointing()
        checkpointed = model(x)
        assert torch.equal(plain, checkpointed)
        for ours, expected in zip(
            torch.autograd.grad(checkpointed.sum(), list(model.parameters())), grads, strict=True
        ):
            torch.testing.assert_close(ours, expected)

    def test_fx_trace_is_bit_equal(self, name):
        model = make(name, depth=1).eval()
        x = inputs(name)
        traced = fx.symbolic_trace(model)
        assert torch.equal(traced(x), model(x))
        traced.train()(x).mean().backward()
        assert all(p.grad is not None for p in traced.parameters())

    def test_masks_have_no_weight_decay(self, name):
        model = make(name, border="learned") if "topvit" not in name else make(name)
        masks = [n for n, _ in model.named_parameters() if ".rpe." in n or ".border." in n]
        assert bool(masks) == ("rpe" in name or "topvit" in name)
        assert set(masks) <= model.no_weight_decay()
        decayed, free = (
            {id(p) for p in group["params"]}
            for group in sorted(
                param_groups_weight_decay(model, 0.1, no_weight_decay_list=model.no_weight_decay()),
                key=lambda g: -g["weight_decay"],
            )
        )
        parameters = dict(model.named_parameters())
        assert all(id(parameters[n]) in free and id(parameters[n]) not in decayed for n in masks)

    def test_layer_decay_puts_masks_with_their_block(self, name):
        model = make(name)
        names = {id(p): n for n, p in model.named_parameters()}
        scales = {
            names[id(p)]: group["lr_scale"]
            for group in param_groups_layer_decay(model, layer_decay=0.5)
            for p in group["params"]
        }
        for n, scale in scales.items():
            if ".rpe." in n:
                assert scale == scales[n.split(".attn.")[0] + ".attn.qkv.weight"]

    def test_save_and_load_through_timm(self, name, tmp_path):
        model = make(name, num_classes=6).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.02 * torch.randn_like(p))
        save_for_hf(model, tmp_path, safe_serialization=True, model_args=small(name))
        again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        x = inputs(name)
        assert torch.equal(again(x), model(x))

    def test_meta_device(self, name):
        with torch.device("meta"):
            model = make(name, rpe_init="decay") if "topvit" not in name else make(name)
        model = model.to_empty(device="cpu")
        model.init_weights()
        out = model.eval()(inputs(name))
        assert out.isfinite().all() and out.abs().max() < 100
        for a, b in zip(model.blocks, make(name).blocks, strict=True):
            assert (a.attn.rpe is None) == (b.attn.rpe is None)

    def test_bfloat16_autocast_step(self, name):
        model = make(name, num_classes=3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs(name)), torch.tensor([0, 2]))
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_feature_extraction_by_timms_fx_tools():
    pytest.importorskip("torchvision")
    from timm.models._features_fx import FeatureGraphNet

    name = "performer_rpe2d_tiny_patch16_224"
    net = FeatureGraphNet(make(name).eval(), out_indices=(1,))
    assert net(inputs(name))[0].shape == (2, 13, 192)


def test_version_is_the_packages():
    from importlib.metadata import version

    assert version("vit_rpe") == vit_rpe.__version__
