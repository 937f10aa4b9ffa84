import re

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import RmsNorm, SwiGLU, SwiGLUPacked
from timm.models import save_for_hf
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import nn

from vit_rpe.models import PerformerViT, SoftmaxRPEViT
from vit_rpe.models.conversion import convert

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 2},
    "registers without positions": {"reg_tokens": 2, "no_embed_class": True},
    "qk_norm": {"qk_norm": True},
    "layer scale": {"init_values": 1e-2},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "average, final norm before": {"global_pool": "avg", "fc_norm": False},
    "attention pool": {"class_token": False, "global_pool": "map"},
    "no positions": {"pos_embed": "none"},
    "not square": {"img_size": (24, 40)},
    "patches not square": {"patch_size": (8, 4)},
    "pre_norm": {"pre_norm": True},
    "no final norm": {"final_norm": False},
    "no biases": {"qkv_bias": False, "proj_bias": False},
    "inner norms": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "RMS norm": {"norm_layer": RmsNorm, "embed_norm_layer": RmsNorm},
    "another activation": {"act_layer": "quick_gelu", "mlp_ratio": 2.7},
    "dynamic size": {"dynamic_img_size": True},
    "no head": {"num_classes": 0},
    "one channel": {"in_chans": 1},
    "four channels": {"in_chans": 4},
    "rates of dropout": {"drop_path_rate": 0.3, "attn_drop_rate": 0.2, "patch_drop_rate": 0.1},
}
UNNAMED = {
    "another eps": {"norm_layer": lambda dim, **kw: nn.LayerNorm(dim, eps=1e-4, **kw)},
    "SwiGLU": {"mlp_layer": SwiGLU, "act_layer": "silu", "mlp_ratio": 2.6667},
    "packed SwiGLU": {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU},
}


def vit(**options):
    """A timm ViT whose every weight matters: norms, scales and tokens, too."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 7, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def images(model, count=2):
    torch.manual_seed(1)
    return torch.randn(count, model.patch_embed.proj.in_channels, *model.patch_embed.img_size)


@torch.no_grad()
def assert_same(model, other, tolerance=1e-5):
    x = images(model)
    expected = model(x)
    assert (other(x) - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("options", (VARIANTS | UNNAMED).values(), ids=VARIANTS | UNNAMED)
def test_softmax_gives_the_same_logits(options):
    source = vit(**options)
    model, report = convert(source, attention="softmax")
    assert isinstance(model, SoftmaxRPEViT) and not model.training
    assert_same(source, model)
    assert not report.not_taken and not report.resampled
    assert set(report.taken) == set(source.state_dict())
    assert set(report.new) == {f"blocks.{i}.attn.rpe.table" for i in range(2)}


@pytest.mark.parametrize("rpe", ["offset", "distance", "exponential"])
def test_masks_start_at_one(rpe):
    source = vit(reg_tokens=1)
    for border in ("ones", "learned"):
        assert_same(source, convert(source, attention="softmax", rpe=rpe, border=border)[0])


@pytest.mark.parametrize("feature_map", ["relu", "elu", "square", "favor", "favor_hyperbolic"])
def test_linear_is_the_performer_without_a_mask(feature_map):
    source = vit()
    options = {"feature_map": feature_map}
    if feature_map.startswith("favor"):
        options["num_features"] = 12
    torch.manual_seed(2)
    masked, _ = convert(source, **options)
    torch.manual_seed(2)
    plain, report = convert(source, rpe="none", **options)
    assert isinstance(masked, PerformerViT)
    assert report.architecture == "performer_tiny_patch16_224"
    assert_same(plain, masked)


def test_many_random_features_come_near_softmax():
    source = vit()
    with torch.no_grad():
        for block in source.blocks:
            block.attn.qkv.weight[:48] *= 0.3  # small logits: where random features are good
    errors = []
    for count in (4, 4096):
        torch.manual_seed(0)
        model, _ = convert(source, feature_map="favor", num_features=count)
        x = images(source, 8)
        with torch.no_grad():
            errors.append(((model(x) - source(x)).norm() / source(x).norm()).item())
    assert errors[1] < 0.02 and errors[1] < errors[0] / 5


def test_the_report():
    _, report = convert(vit(), feature_map="favor", num_features=8, rpe="offset", img_size=(32, 48))
    assert report.architecture == "performer_rpe2d_tiny_patch16_224"
    assert report.source == "vit_tiny_patch16_224"
    assert report.resampled == ("pos_embed",)
    assert report.new[0] == "blocks.0.attn.features.projection" and len(report.new) == 4
    assert "pos_embed" not in report.taken and "head.weight" in report.taken
    assert report.kwargs["img_size"] == (32, 48) and report.kwargs["num_features"] == 8
    assert "qkv_bias" not in report.kwargs and not report.unnamed
    text = str(report)
    assert "vit_tiny_patch16_224 -> performer_rpe2d_tiny_patch16_224" in text
    assert "resampled   pos_embed" in text and "not taken   nothing" in text
    assert "blocks.*.attn.features.projection (2), blocks.*.attn.rpe.table (2)" in text
    assert "num_features=8" in text


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_a_directory_gives_the_model_back(options, attention, tmp_path):
    model, report = convert(vit(**options), attention=attention, rpe_gain=2.0)
    save_for_hf(model, str(tmp_path), safe_serialization=True, model_args=report.kwargs)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert type(again) is type(model)
    assert_same(model, again, 0.0)


@pytest.mark.parametrize("options", UNNAMED.values(), ids=UNNAMED)
def test_layers_without_a_name_are_named_in_the_report(options):
    model, report = convert(vit(**options))
    assert set(report.unnamed) <= {"norm_layer", "mlp_layer"} and report.unnamed
    again = timm.create_model(report.architecture, **report.kwargs).eval()
    again.load_state_dict(model.state_dict())
    assert_same(model, again, 0.0)


@pytest.mark.parametrize(
    ("dim", "heads", "size"), [(192, 3, "tiny"), (320, 5, "small"), (1024, 16, "large")]
)
def test_the_closest_name(dim, heads, size):
    source = VisionTransformer(img_size=16, depth=1, embed_dim=dim, num_heads=heads, num_classes=2)
    model, report = convert(source)
    assert report.architecture == f"performer_rpe2d_{size}_patch16_224"
    assert ("embed_dim" in report.kwargs) is (dim == 320)
    assert report.source == "a timm ViT"
    softmax = convert(source, attention="softmax")[1].architecture
    assert softmax == f"vit_rpe2d_{'base' if size == 'large' else size}_patch16_224"


def test_another_resolution_is_that_of_timm():
    source = vit(img_size=(32, 48))
    model, report = convert(source, attention="softmax", img_size=(64, 96))
    assert report.resampled == ("pos_embed",)
    source.set_input_size(img_size=(64, 96))
    assert_same(source, model)


def test_a_turned_image_turns_the_positions():
    """4 x 6 and 6 x 4 have as many tokens; timm itself would keep the positions as they are."""
    source = vit(img_size=(32, 48))
    source.pos_embed.data[:, 1:] = torch.arange(24.0)[None, :, None]
    model, report = convert(source, img_size=(48, 32))
    turned = model.pos_embed[0, 1:, 0].reshape(6, 4)
    assert report.resampled == ("pos_embed",)
    assert (turned.diff(dim=0) > 0).all() and (turned.diff(dim=1) > 0).all()


def test_patches_are_resampled():
    source = vit()
    model, report = convert(source, attention="softmax", img_size=64, patch_size=16)
    assert report.resampled == ("patch_embed.proj.weight",)
    source.set_input_size(img_size=(64, 64), patch_size=(16, 16))
    assert_same(source, model)


def test_another_number_of_classes():
    _, report = convert(vit(), num_classes=3)
    assert {"head.weight", "head.bias"} <= set(report.new)
    assert set(report.not_taken) == {"head.weight", "head.bias"}


def test_the_model_stands_on_its_own():
    source = vit().double().train()
    model, _ = convert(source)
    assert model.training and model.pos_embed.dtype == torch.float64
    model.eval()
    before = model(images(source).double())
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.zero_()
    assert torch.equal(model(images(source).double()), before)


def test_it_learns():
    model, _ = convert(vit(), feature_map="favor", border="learned")
    model(images(model)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_data_config_is_the_sources():
    source = vit()
    source.pretrained_cfg.update(mean=(0.1, 0.2, 0.3), crop_pct=0.5)
    cfg = convert(source, img_size=40)[0].pretrained_cfg
    assert cfg["mean"] == (0.1, 0.2, 0.3) and cfg["crop_pct"] == 0.5
    assert cfg["input_size"] == (3, 40, 40) and cfg["num_classes"] == 7


def other_attention(model):
    model.blocks[1].attn = nn.Identity()


def other_activation(model):
    model.blocks[1].mlp.act = nn.GELU("tanh")


def other_norm(model):
    model.blocks[1].norm2.eps = 1e-3


def other_head(model):
    model.head = nn.Sequential(nn.Linear(24, 7))


def other_patches(model):
    model.patch_embed = nn.Conv2d(3, 24, 8, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_attention, "blocks.1.attn: need timm's Attention, got Identity"),
        (other_activation, "blocks.1.mlp.act: it is GELU(approximate='tanh')"),
        (other_norm, "blocks.1.norm2: it is LayerNorm((24,), eps=0.001"),
        (other_head, "head: it is Sequential"),
        (other_patches, "patch_embed: need timm's PatchEmbed, got Conv2d"),
    ],
)
def test_other_layers_are_refused_by_name(change, message):
    model = vit()
    change(model)
    with pytest.raises(ValueError, match=re.escape(message)):
        convert(model)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_tiny_patch16_224", {"block_fn": ParallelScalingBlock}, "got ParallelScalingBlock"),
        ("vit_tiny_patch16_224", {"attn_layer": "diff"}, "got DiffAttention"),
        ("deit_tiny_distilled_patch16_224", {}, "got VisionTransformerDistilled"),
        ("vit_rpe2d_tiny_patch16_224", {}, "got SoftmaxRPEViT"),
    ],
)
def test_other_kinds_of_vit_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        convert(timm.create_model(name, **SMALL, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "sparse"}, "attention must be one of linear, softmax; got 'sparse'"),
        ({"depth": 3}, "depth follows from the source"),
        ({"feature_mop": "relu"}, "feature_mop is no option; convert takes rpe"),
        ({"feature_map": "cosine"}, "feature_map must be one of"),
        ({"attention": "softmax", "feature_map": "relu"}, "no meaning for softmax"),
        ({"model_name": "vit_tiny_patch16_224"}, "describe a state dict, but a model came"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        convert(vit(), **options)


ARCHITECTURE = {"embed_dim": 24, "depth": 2, "num_heads": 3}


@pytest.mark.parametrize("as_file", [True, False])
def test_a_state_dict_with_the_name_of_its_architecture(as_file, tmp_path):
    source = vit(img_size=40)  # the image size is found in the number of positions
    state = {f"module.{name}": value for name, value in source.state_dict().items()}
    state["module.mask"] = torch.zeros(1)
    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    model, report = convert(
        path if as_file else {"state_dict": state},
        model_name="vit_tiny_patch16_224",
        model_args=ARCHITECTURE,
        attention="softmax",
    )
    assert_same(source, model)
    assert report.not_taken == ("mask",)
    assert report.source.startswith("weights.safetensors (" if as_file else "a state dict (")


def test_a_state_dict_of_a_size_that_is_not_square():
    source = vit(img_size=(24, 40))
    options = {"model_name": "vit_tiny_patch16_224", "attention": "softmax"}
    with pytest.raises(ValueError, match=r"15 positions do not fit .* model_args"):
        convert(source.state_dict(), model_args=ARCHITECTURE, **options)
    args = {**ARCHITECTURE, "img_size": (24, 40)}
    assert_same(source, convert(source.state_dict(), model_args=args, **options)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give model_name"),
        ({"model_name": "vit_nothing"}, "timm has no model 'vit_nothing'"),
        ({"model_name": "resnet18"}, "resnet18 does not take these arguments"),
        ({"model_name": "vit_tiny_patch16_224"}, "not the weights of vit_tiny_patch16_224"),
        (
            {"model_name": "vit_tiny_patch16_224", "model_args": {**ARCHITECTURE, "depth": 3}},
            "not the weights of vit_tiny_patch16_224: no blocks",
        ),
    ],
)
def test_wrong_descriptions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        convert(vit().state_dict(), **options)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".npz"])
def test_pickles_are_refused(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"weights{suffix}"
    torch.save(vit().state_dict(), path)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpickled"))
    with pytest.raises(ValueError, match="need a .safetensors file.*save_file"):
        convert(path, model_name="vit_tiny_patch16_224")


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    with pytest.raises(ValueError, match="there is no file"):
        convert(path, model_name="vit_tiny_patch16_224")
    torch.save(vit().state_dict(), path)  # a pickle under another name
    with pytest.raises(ValueError, match="weights.safetensors is no safetensors file"):
        convert(path, model_name="vit_tiny_patch16_224")
