"""A still clip gives an inflated model the logits of its image."""

import pytest
import timm
import torch

from vit_rpe.models import convert, inflate

TINY = {"img_size": (48, 64), "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
IMAGE, VIDEO = "performer_rpe2d_tiny_patch16_224", "performer_rpe3d_tiny_patch16_224"


def perturb(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def assert_still_clips_are_images(image_model, video):
    x = torch.randn(2, 3, 48, 64)
    frames = video.patch_embed.num_frames
    with torch.no_grad():
        expected = image_model(x)
        logits = video(x[:, :, None].repeat(1, 1, frames, 1, 1))
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"border": "learned", "reg_tokens": 2, "rpe_gain": 3.0},
        {"class_token": False, "global_pool": "avg"},
        {"global_pool": "map", "no_embed_class": True},
        {"rpe": "exponential", "rpe_terms": 2, "rpe_init": "decay"},
        {"pos_embed": "none", "feature_map": "elu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["performer", "vit"])
def test_a_still_clip_is_its_image(kind, options):
    if kind == "vit":
        options = {name: value for name, value in options.items() if name != "feature_map"}
    names = (f"{kind}_rpe{d}d_tiny_patch16_224" for d in (2, 3))
    args = {**TINY, **options}
    model = perturb(timm.create_model(next(names), **args))
    video = inflate(model, next(names), num_frames=6, tubelet_size=2, **args)
    assert video.patch_embed.grid_size == (3, 3, 4) and not video.training
    assert_still_clips_are_images(model, video)


@pytest.mark.parametrize("rpe", ["offset", "exponential"])
@pytest.mark.parametrize("kind", ["performer", "vit"])
@pytest.mark.parametrize("pool", ["avg", "avgmax", "map", ""])
def test_causal_time_without_prefix_tokens(kind, rpe, pool):
    args = {**TINY, "rpe": rpe, "class_token": False, "global_pool": pool, "rpe_init": "decay"}
    model = perturb(timm.create_model(f"{kind}_rpe2d_tiny_patch16_224", **args))
    name = f"{kind}_rpe3d_tiny_patch16_224"
    video = inflate(model, name, num_frames=6, causal_time=True, **args)
    assert video.causal_time
    if pool:
        assert_still_clips_are_images(model, video)
    moving = torch.randn(2, 3, 6, 48, 64)
    changed = torch.cat([moving[:, :, :2], torch.randn(2, 3, 4, 48, 64)], 2)
    first, other = (video.forward_features(clip)[:, :12] for clip in (moving, changed))
    torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("image", "video"),
    [
        ({}, {"feature_map": "elu"}),
        ({"feature_map": "square"}, {"feature_map": "relu"}),
        ({}, {"unit_norm": True}),
        ({"rpe_gain": 3.0}, {"rpe_gain": 1.0}),
        ({"pre_norm": False, "class_token": False, "global_pool": "avg"}, {"global_pool": "max"}),
        ({"rpe": "exponential", "pos_embed": "none"}, {"img_size": (64, 48)}),
    ],
    ids=str,
)
def test_arguments_that_change_no_shape_are_compared(image, video):
    args = {**TINY, **image}
    model = perturb(timm.create_model(IMAGE, **args)).train()
    model.blocks[1].eval()
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="do not describe the image model: (on a still|it takes)"):
        inflate(model, VIDEO, num_frames=4, **{**args, **video})
    assert model.training and not model.blocks[1].training and not model.blocks[1].attn.training
    torch.set_rng_state(state)
    assert inflate(model, VIDEO, num_frames=4, drop_path_rate=0.5, **args).training


def test_half_precision_and_the_meta_device():
    model = perturb(timm.create_model(IMAGE, **TINY)).to(torch.bfloat16)
    assert inflate(model, VIDEO, num_frames=4, **TINY).head.weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="on a still image"):
        inflate(model, VIDEO, num_frames=4, feature_map="elu", **TINY)
    with torch.device("meta"):
        assert inflate(model.to("meta"), VIDEO, num_frames=4, **TINY).head.weight.is_meta


def test_a_converted_vit():
    source = perturb(timm.create_model("vit_tiny_patch16_224", **TINY))
    model, report = convert(source, attention="softmax")
    video = inflate(model, "vit_rpe3d_tiny_patch16_224", num_frames=4, **report.kwargs)
    assert_still_clips_are_images(source, video)


@pytest.mark.parametrize(
    ("image", "more", "message"),
    [
        ({"rpe": "distance"}, {}, "a distance counts time"),
        ({"rpe": "none"}, {}, "got NoneType"),
        ({}, {"causal_time": True}, "causal_time patches do not read prefix tokens"),
        ({}, {"num_heads": 2}, "do not describe the image model"),
    ],
)
def test_what_cannot_be_equal_is_refused(image, more, message):
    model = timm.create_model(IMAGE, **TINY, **image)
    with pytest.raises(ValueError, match=message):
        inflate(model, VIDEO, num_frames=4, **{**TINY, **image, **more})
    with pytest.raises(ValueError, match="is no video model"):
        inflate(timm.create_model(IMAGE, **TINY), IMAGE, **TINY)
