"""A stream of tubelets gives at each step what the model gives for the clip so far."""

from collections.abc import Iterator
from copy import deepcopy
from math import prod

import pytest
import timm
import torch
from torch import Tensor

from tests.models.test_video import PERFORMER, PREFIXES, SOFTMAX, TINY, UNMASKED, clips, perturb
from vit_rpe.attention.reference import masked_attention
from vit_rpe.attention.streaming import LinearState, Scratch, SoftmaxState
from vit_rpe.attention.streaming.key_memory import DecayState, KeyValueCache, RunningSum
from vit_rpe.features import ReLUFeatures
from vit_rpe.features.names import ELEMENTWISE, RANDOM
from vit_rpe.masks import Exponential
from vit_rpe.models import MaskedVideo
from vit_rpe.models.names import VIDEO_RPES

FRAMES, TUBELET, PATCHES = 6, 2, 12
MASKS = {
    **{rpe: {"rpe": rpe} for rpe in (*VIDEO_RPES, "none")},
    "terms": {"rpe": "exponential", "rpe_terms": 3, "rpe_gain": 2.0},
    "abs": {"rpe": "offset", "rpe_positive": "abs"},
}
ENDLESS = {"pos_embed": "none", "rpe_init": "decay"}


def make(name: str = PERFORMER, scale: float = 0.2, **options):
    args = {**TINY, "num_frames": FRAMES, "causal_time": True, **options}
    return perturb(timm.create_model(name, **args), scale).eval()


def cropped(model: MaskedVideo, tubelets: int) -> MaskedVideo:
    model = deepcopy(model)
    model.set_input_size(num_frames=tubelets * model.patch_embed.tubelet_size)
    return model


def steps(model: MaskedVideo, x: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The number of tubelets so far, the newest one, and the clip so far."""
    size = model.patch_embed.tubelet_size
    for n, frames in enumerate(x.split(size, 2), 1):
        yield n, frames, x[:, :, : n * size]


@torch.no_grad()
def assert_stream_is_model(model: MaskedVideo, x: Tensor) -> None:
    stream, features = model.stream(), model.stream()
    prefix = model.num_prefix_tokens
    places = prod(model.patch_embed.grid_size[1:])
    for n, frames, so_far in steps(model, x):
        whole = cropped(model, n)
        torch.testing.assert_close(stream(frames), whole(so_far), rtol=1e-4, atol=1e-4)
        assert stream.num_frames == so_far.shape[2]
        expected = whole.forward_features(so_far)
        expected = torch.cat([expected[:, :prefix], expected[:, -places:]], 1)
        tokens = features.forward_features(frames)
        torch.testing.assert_close(tokens, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stream.forward_head(), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
def test_masks(name, mask, options):
    assert_stream_is_model(make(name, **MASKS[mask], **options), clips(FRAMES))


@pytest.mark.parametrize("mask", ["offset", "exponential", "none"])
@pytest.mark.parametrize("feature_map", [*ELEMENTWISE, *RANDOM])
def test_feature_maps(feature_map, mask):
    options = {**MASKS[mask], "feature_map": feature_map, "reg_tokens": 1}
    assert_stream_is_model(make(**options), clips(FRAMES))
    assert_stream_is_model(make(**options, unit_norm=True), clips(FRAMES, batch=1))


@pytest.mark.parametrize(
    "options",
    [
        {"global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 2, "fc_norm": False},
        {"global_pool": "avg", "fc_norm": False},
        {"global_pool": "max", "fc_norm": True},
        {"global_pool": "avgmax", "pool_include_prefix": True, "class_token": False},
        {"global_pool": "avgmax", "reg_tokens": 1, "class_token": False, "border": "learned"},
        {"global_pool": "max", "reg_tokens": 1, "pool_include_prefix": True, "fc_norm": False},
        {"pre_norm": True, "qk_norm": True, "init_values": 0.5},
        {"pos_embed": "none", "num_classes": 0, "scale_attn_norm": True},
        {"tubelet_size": 3, "in_chans": 1},
        {"dynamic_img_size": True, "dynamic_img_pad": True, "img_size": (40, 64)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
def test_heads_and_other_options(name, options):
    model = make(name, rpe="exponential", **options)
    if model.cls_token is not None:
        model.cls_token.data.mul_(10)  # so that it is the largest token in some channels
    height, width = model.patch_embed.img_size
    x = clips(FRAMES, height, width)
    assert_stream_is_model(model, x[:, : options.get("in_chans", 3)])


@pytest.mark.parametrize("mask", ["offset", "exponential", "none"])
@torch.no_grad()
def test_empty_rows_give_zeros(mask):
    """Keys that ReLU makes zero: in one head of a model all, in a layer those of the first step."""
    model = make(**MASKS[mask], class_token=False, global_pool="avg", depth=1)
    attn = model.blocks[0].attn
    attn.qkv.bias[24:32] = -100
    assert_stream_is_model(model, clips(FRAMES))
    memory = attn.stream_state(Scratch())
    q, k, v = torch.randn(3, 2, 3, PATCHES, 8)
    nothing = memory.attend(q, -k.abs(), v)
    assert (nothing == 0).all()
    assert (memory.attend(q, k, v) != 0).any()


def test_softmax_that_sees_nothing_gives_zeros():
    model = make(SOFTMAX, rpe_positive="abs", class_token=False, global_pool="avg")
    with torch.no_grad():
        model.blocks[0].attn.rpe.table[1] = 0
    assert_stream_is_model(model, clips(FRAMES))


@pytest.mark.parametrize("feature_map", RANDOM)
@pytest.mark.parametrize("mask", ["offset", "exponential", "none"])
@pytest.mark.parametrize("sizes", [(1, 6, 12), (12, 6, 1), (6, 12, 1), (6, 1, 12)])
@torch.no_grad()
def test_the_scale_of_random_features_follows_their_maximum(sizes, mask, feature_map):
    """Features fall as exp(-|k|^2 / 2): over these sizes by far more than float32 holds."""
    options = {**MASKS[mask], "reg_tokens": 1, "border": "learned", "feature_map": feature_map}
    attn = make(**options).blocks[0].attn
    memory = attn.stream_state(Scratch())
    size = torch.tensor([float(s) for s in sizes]).repeat_interleave(PATCHES)[:, None]
    q, k, v = torch.randn(3, 2, 3, 2 + 3 * PATCHES, 8)
    k[..., 2:, :] *= size
    for n in range(1, 4):
        double = deepcopy(attn).double()
        double.rpe.resize((n, 3, 4))
        seen = 2 + n * PATCHES
        q64, k64, v64 = (x[..., :seen, :].double() for x in (q, k, v))
        phi = double.features(q64, k64)
        expected = masked_attention(*phi, v64, double.mask(seen, q.device))
        now = [0, 1, *range(seen - PATCHES, seen)]
        out = memory.attend(q[..., now, :], k[..., now, :], v[..., now, :])
        torch.testing.assert_close(out, expected[..., now, :].float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("mask", "form"), [("exponential", DecayState), ("none", RunningSum)])
def test_a_state_of_constant_size_goes_on_for_ever(mask, form):
    options = {**MASKS[mask], **ENDLESS, "border": "learned", "feature_map": "favor"}
    model = make(num_frames=4, scale=0.02, **options)
    long = make(num_frames=20, **options)
    for attn in (block.attn for block in model.blocks):
        for parameter in attn.rpe.parameters():
            parameter.data.abs_()
    long.load_state_dict(model.state_dict())
    stream = model.stream()
    sizes = []
    for n, frames, so_far in steps(long, clips(20)):
        logits = stream(frames)
        if n in (1, 2, 3, 10):
            with torch.no_grad():
                expected = cropped(long, n)(so_far)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        sizes.append([tensor_bytes(memory) for memory in stream._states])
    assert all(isinstance(memory._keys, form) for memory in stream._states)
    assert sizes[0][0] > 0 and all(size == sizes[0] for size in sizes)


def tensor_bytes(holder) -> int:
    """The bytes of all tensors that an object holds, modules apart."""
    if isinstance(holder, Tensor):
        return holder.untyped_storage().nbytes()
    if isinstance(holder, torch.nn.Module) or not hasattr(holder, "__dict__"):
        return 0
    return sum(tensor_bytes(value) for value in vars(holder).values())


def test_tables_keep_all_keys():
    stream = make().stream()
    assert all(isinstance(memory._keys, KeyValueCache) for memory in stream._states)


@pytest.mark.parametrize("mask", ["offset", "exponential", "none"])
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
def test_earlier_frames_are_not_computed_again(name, mask):
    model = make(name, **MASKS[mask], reg_tokens=1)
    tokens = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, args, __: tokens.append(args[0].shape[1]))
    stream = model.stream()
    for _, frames, _ in steps(model, clips(FRAMES)):
        stream(frames)
    assert tokens == [2 + PATCHES] * len(model.blocks) * 3


@pytest.mark.parametrize("mask", ["offset", "exponential", "none"])
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
class TestStreams:
    def test_reset_begins_anew_with_any_batch(self, name, mask):
        model = make(name, **MASKS[mask])
        stream = model.stream()
        x = clips(FRAMES)
        first = [stream(frames) for _, frames, _ in steps(model, x)]
        stream.reset()
        stream(clips(TUBELET, batch=3))
        stream.reset()
        for (_, frames, _), expected in zip(steps(model, x), first, strict=True):
            assert torch.equal(stream(frames), expected)

    def test_several_do_not_mix_with_each_other_or_the_model(self, name, mask):
        model = make(name, **MASKS[mask])
        a, b = model.stream(), model.stream()
        x, y = clips(FRAMES), clips(FRAMES, batch=1)
        with torch.no_grad():
            expected = model(x)
            for frames, others in zip(x.split(TUBELET, 2), y.split(TUBELET, 2), strict=True):
                a(frames), b(others)
                torch.testing.assert_close(model(x), expected)
            torch.testing.assert_close(a.forward_head(), expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(b.forward_head(), model(y), rtol=1e-4, atol=1e-4)

    def test_bfloat16_autocast(self, name, mask):
        model = make(name, **MASKS[mask])
        stream, x = model.stream(), clips(FRAMES)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            for _, frames, _ in steps(model, x):
                logits = stream(frames)
            expected = model(x)
        exact = model(x).detach()
        assert logits.dtype == expected.dtype
        error, theirs = ((y.float() - exact).abs().max() for y in (logits, expected))
        assert error < max(2 * theirs, 0.02 * exact.abs().max())

    def test_double_precision_and_no_gradients(self, name, mask):
        model = make(name, **MASKS[mask]).double()
        stream, x = model.stream(), clips(FRAMES).double().requires_grad_()
        for _, frames, _ in steps(model, x):
            logits = stream(frames)
        assert not logits.requires_grad
        torch.testing.assert_close(logits, model(x).detach(), rtol=1e-9, atol=1e-9)


class TestRefusals:
    def test_models_that_cannot_stream(self):
        for model, message in [
            (make(causal_time=False), "causal_time=True"),
            (make().train(), "eval mode"),
            (make(global_pool="map"), "token, avg, max or avgmax.*got global_pool='map'"),
            (make(global_pool=""), "got global_pool=''"),
        ]:
            with pytest.raises(ValueError, match=message):
                model.stream()

    def test_frames_that_do_not_fit(self):
        model = make()
        stream = model.stream()
        with pytest.raises(ValueError, match="no frames yet"):
            stream.forward_head()
        for shape in [(2, 3, 4, 48, 64), (2, 3, 2, 64, 48), (2, 1, 2, 48, 64), (3, 2, 48, 64)]:
            with pytest.raises(ValueError, match=r"\(B, 3, 2, 48, 64\), got \("):
                stream(torch.randn(shape))
        stream(clips(TUBELET))
        with pytest.raises(ValueError, match="began with 2 clips, got 3"):
            stream(clips(TUBELET, batch=3))
        model.train()
        with pytest.raises(ValueError, match="eval mode"):
            stream(clips(TUBELET))
        model.eval().set_input_size((32, 32))
        with pytest.raises(ValueError, match="make another stream"):
            stream(clips(TUBELET, 32, 32))

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            (PERFORMER, {"rpe": "exponential", "rpe_init": "decay"}, "absolute positions"),
            (PERFORMER, {"pos_embed": "none"}, "tables"),
            (SOFTMAX, {"pos_embed": "none", "rpe": "exponential"}, "softmax attention keeps"),
            (SOFTMAX, {"pos_embed": "none", "rpe": "none"}, "softmax attention keeps"),
            (UNMASKED, {}, "absolute positions"),
        ],
    )
    def test_the_end(self, name, options, message):
        model = make(name, scale=0.0, **options)
        stream = model.stream()
        for _, frames, _ in steps(model, clips(FRAMES)):
            last = stream(frames)
        with pytest.raises(ValueError, match=f"all {FRAMES} frames.*{message}"):
            stream(clips(TUBELET))
        assert torch.equal(stream.forward_head(), last)

    def test_the_end_of_a_mask_that_grows(self):
        model = make(scale=0.0, rpe="exponential", **ENDLESS)
        with torch.no_grad():
            model.blocks[1].attn.rpe.rate[2, 0, 0] = -0.1
        stream = model.stream()
        for _, frames, _ in steps(model, clips(FRAMES)):
            stream(frames)
        with pytest.raises(ValueError, match="rate along time is negative"):
            stream(clips(TUBELET))

    def test_negative_features(self):
        model = make()
        model.blocks[0].attn.features.nonnegative = False
        with pytest.raises(ValueError, match="without negative values.*ReLUFeatures"):
            model.stream()


@torch.no_grad()
def test_long_clips_with_negative_rates():
    """What a rate means along time does not depend on the number of frames: 20 tubelets or 4."""
    model = make(rpe="exponential", num_frames=40, pos_embed="none", depth=1)
    model.blocks[0].attn.rpe.rate.copy_(-torch.rand(3, 1, 3))
    x, stream = clips(40), model.stream()
    for n, frames, so_far in steps(model, x):
        logits = stream(frames)
        if n in (1, 4, 15, 20):
            whole = cropped(model, n)(so_far)
            torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", [(6,), (3, 4), (2, 2, 2, 2)])
def test_a_mask_without_time_height_and_width_is_refused(grid):
    mask = Exponential(torch.ones(1, len(grid)), torch.ones(1), grid, one_sided=(0,))
    with pytest.raises(ValueError, match="time, height and width, got Exponential on the grid"):
        LinearState(mask, ReLUFeatures(), 0.0, Scratch())
    with pytest.raises(ValueError, match="time, height and width, got Exponential on the grid"):
        SoftmaxState(mask)
