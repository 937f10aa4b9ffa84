"""Clips: the 3-level mask against its definition, causal time, sizes, checkpoints."""

from itertools import product

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import Tensor

from vit_rpe.features.names import ELEMENTWISE, RANDOM
from vit_rpe.models.checkpoint import checkpoint_filter_fn
from vit_rpe.models.names import VIDEO_RPES

GRID = (2, 3, 4)  # unequal sides, so that swapped axes show
TINY = {
    **{"img_size": (48, 64), "num_frames": 4, "tubelet_size": 2},
    **{"depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5},
}
PERFORMER, UNMASKED, SOFTMAX = (
    f"{kind}_tiny_patch16_224" for kind in ("performer_rpe3d", "performer3d", "vit_rpe3d")
)
PREFIXES = {
    "class token": {"border": "learned"},
    "registers": {"reg_tokens": 2, "no_embed_class": True},
    "no prefix": {"class_token": False, "global_pool": "avg"},
}


def make(name: str = PERFORMER, **options):
    return timm.create_model(name, **{**TINY, **options}).eval()


def perturb(model, scale: float = 0.2):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn_like(p))
    return model


def clips(frames: int = 4, height: int = 48, width: int = 64, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, frames, height, width)


def dense_mask(attn, causal: bool) -> Tensor:
    """The mask over all tokens, entry by entry, from an offset table or from no parameters."""
    places = list(product(*(range(n) for n in attn.rpe.grid)))
    prefix = attn.num_prefix_tokens
    mask = torch.ones(attn.num_heads, prefix + len(places), prefix + len(places))
    if causal:
        mask[:, prefix:, :prefix] = 0
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            t, y, x = (a - b + n - 1 for a, b, n in zip(query, key, attn.rpe.grid, strict=True))
            seen = not (causal and key[0] > query[0])
            table = getattr(attn.rpe, "table", None)
            weight = torch.ones(()) if table is None else table[:, t, y, x].exp()
            mask[:, prefix + i, prefix + j] = weight * seen
    return mask


def defined_attention(attn, x: Tensor, causal: bool, softmax: bool) -> Tensor:
    q, k, v = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    mask = dense_mask(attn, causal)
    kernel = (q @ k.mT / attn.head_dim**0.5).exp() if softmax else torch.relu(q) @ torch.relu(k).mT
    weights = kernel * mask
    out = weights / weights.sum(-1, keepdim=True) @ v
    return attn.proj(out.transpose(1, 2).flatten(2))


def test_the_papers_proposal():
    model = timm.create_model("performer_rpe3d", depth=1)
    assert model.patch_embed.proj.weight.shape == (768, 3, 2, 16, 16)
    assert model.patch_embed.grid_size == (8, 14, 14) and model.pos_embed.shape[1] == 1569
    attn = model.blocks[0].attn
    assert attn.num_heads == 12 and attn.rpe.table.shape == (12, 15, 27, 27)
    assert model.default_cfg["input_size"] == (3, 224, 224)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reg_tokens", [0, 2])
@pytest.mark.parametrize(
    ("name", "options"),
    [(SOFTMAX, {}), *((PERFORMER, {"path": path}) for path in ("auto", "explicit", "product"))],
)
def test_attention_is_its_definition(name, options, reg_tokens, causal):
    check_definition(name, causal, reg_tokens=reg_tokens, **options)


@pytest.mark.parametrize("reg_tokens", [0, 2])
@pytest.mark.parametrize(
    ("name", "options"),
    [(SOFTMAX, {"rpe": "none"})]
    + [(UNMASKED, {"path": path}) for path in ("auto", "explicit", "product", "scan")],
)
def test_causal_time_without_weights_is_its_definition(name, options, reg_tokens):
    check_definition(name, True, reg_tokens=reg_tokens, **options)


def check_definition(name, causal, reg_tokens, **options):
    model = perturb(make(name, depth=1, reg_tokens=reg_tokens, causal_time=causal, **options), 0.5)
    attn = model.blocks[0].attn
    x = torch.randn(2, 25 + reg_tokens, 24)
    with torch.no_grad():
        attn.qkv.bias += 1  # no row of ReLU features is empty: the formula has no rule for it
        expected = defined_attention(attn, x, causal, name == SOFTMAX)
        torch.testing.assert_close(attn(x), expected, rtol=1e-4, atol=1e-5)


def test_tubelets_are_read_in_row_major_order():
    model = make()
    x = clips()
    tokens = model.patch_embed(x)
    weight, bias = model.patch_embed.proj.weight, model.patch_embed.proj.bias
    for token, (t, i, j) in enumerate(product(*(range(n) for n in GRID))):
        box = x[:, :, 2 * t : 2 * t + 2, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
        expected = box.flatten(1) @ weight.flatten(1).T + bias
        torch.testing.assert_close(tokens[:, token], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("rpe", VIDEO_RPES)
def test_paths_agree(rpe, options, causal):
    model = perturb(make(rpe=rpe, causal_time=causal, feature_map="elu", **options))
    x = clips()
    results = {}
    for path in ("explicit", "product", *(["scan"] if rpe == "exponential" else [])):
        for block in model.blocks:
            block.attn.path = path
        out = model(x)
        results[path] = [out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))]
    expected = results.pop("explicit")
    for result in results.values():
        for ours, theirs in zip(result, expected, strict=True):
            scale = theirs.abs().max().item()
            # a weight that scales a whole row has no gradient: what is left is round-off
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=max(1e-4 * scale, 1e-6))


@pytest.mark.parametrize("options", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("rpe", [*VIDEO_RPES, "none"])
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
class TestCausalTime:
    def test_later_frames_change_no_earlier_output(self, name, rpe, options):
        model = perturb(make(name, rpe=rpe, causal_time=True, num_frames=6, **options))
        x = clips(6)
        changed = x.clone()
        changed[:, :, 4:] = torch.randn_like(changed[:, :, 4:])
        before, after = (frames(model, clip) for clip in (x, changed))
        torch.testing.assert_close(after[:, :2], before[:, :2], rtol=0, atol=1e-6)
        assert (after[:, 2] - before[:, 2]).abs().max() > 1e-2
        if model.num_prefix_tokens:  # they do read all frames
            a, b = (model.forward_features(clip)[:, 0] for clip in (x, changed))
            assert (a - b).abs().max() > 1e-3

    def test_gradients(self, name, rpe, options):
        model = perturb(make(name, rpe=rpe, causal_time=True, num_frames=6, **options))
        x = clips(6).requires_grad_()
        (grad,) = torch.autograd.grad(frames(model, x)[:, 1].square().sum(), x)
        assert (grad[:, :, 4:] == 0).all()
        assert (grad[:, :, :2] != 0).any() and (grad[:, :, 2:4] != 0).any()


def frames(model, x: Tensor) -> Tensor:
    """The features of the patches, (B, T', H' W', C)."""
    features = model.forward_features(x)[:, model.num_prefix_tokens :]
    return features.unflatten(1, (model.patch_embed.grid_size[0], -1))


@pytest.mark.parametrize("name", [UNMASKED, SOFTMAX])
class TestCausalTimeWithoutWeights:
    def test_keeps_every_contract(self, name, tmp_path):
        model = perturb(make(name, rpe="none", causal_time=True))
        plain = make(name, rpe="none")
        assert set(model.state_dict()) == set(plain.state_dict())
        assert {n for n, _ in model.named_parameters()} == {n for n, _ in plain.named_parameters()}
        x = clips()
        assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
        args = {**TINY, "rpe": "none", "causal_time": True}
        save_for_hf(model, str(tmp_path), safe_serialization=True, model_args=args)
        again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        assert torch.equal(again(x), model(x))

    def test_meta_device(self, name):
        with torch.device("meta"):
            model = make(name, rpe="none", causal_time=True)
        model = model.to_empty(device="cpu")
        model.blocks[0].attn.rpe.ones.fill_(torch.nan)
        model.init_weights()
        assert model(clips()).isfinite().all()


@pytest.mark.parametrize("feature_map", ["favor", "favor_hyperbolic", "square"])
@pytest.mark.parametrize("path", ["explicit", "product"])
def test_causal_time_with_other_kernels_and_ffts(feature_map, path):
    model = perturb(make(causal_time=True, feature_map=feature_map, path=path))
    x = clips()
    changed = x.clone()
    changed[:, :, 2:] += 1
    torch.testing.assert_close(
        frames(model, changed)[:, 0], frames(model, x)[:, 0], rtol=1e-3, atol=1e-4
    )


def test_without_causal_time_later_frames_are_seen():
    model = perturb(make(class_token=False, global_pool="avg"))
    x = clips()
    changed = x.clone()
    changed[:, :, 2:] += 1
    assert (frames(model, changed)[:, 0] - frames(model, x)[:, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("border", ["ones", "learned"])
@pytest.mark.parametrize("rpe", VIDEO_RPES)
def test_every_parameter_learns(rpe, border, causal):
    options = {"rpe": rpe, "border": border, "causal_time": causal, "rpe_init": "decay"}
    model = perturb(make(**options, global_pool="avg", reg_tokens=1, pool_include_prefix=True))
    model(clips()).square().sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


@pytest.mark.parametrize("rpe", VIDEO_RPES)
@pytest.mark.parametrize("feature_map", [*ELEMENTWISE, *RANDOM])
def test_a_mask_of_ones_changes_nothing(feature_map, rpe):
    masked = make(feature_map=feature_map, rpe=rpe)
    plain = make(UNMASKED, feature_map=feature_map)
    shared = {n: p for n, p in masked.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict(shared)
    x = clips()
    torch.testing.assert_close(masked(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [PERFORMER, UNMASKED, SOFTMAX])
class TestImages:
    def test_an_image_is_a_still_clip(self, name):
        model = perturb(make(name))
        image = torch.randn(2, 3, 48, 64)
        still = image[:, :, None].repeat(1, 1, 4, 1, 1)
        torch.testing.assert_close(model(image), model(still))

    def test_intermediates_are_means_over_time(self, name):
        model = perturb(make(name))
        image = torch.randn(2, 3, 48, 64)
        still = image[:, :, None].repeat(1, 1, 4, 1, 1)
        final, parts = model.forward_intermediates(image, norm=True)
        features = model.forward_features(still)
        torch.testing.assert_close(final, features)
        mean = features[:, 1:].unflatten(1, GRID).mean(1).permute(0, 3, 1, 2)
        torch.testing.assert_close(parts[-1], mean)
        clip_parts = model.forward_intermediates(still, intermediates_only=True)
        assert [p.shape for p in clip_parts] == [(2, 24, *GRID)] * 2


def test_forms_of_intermediates():
    model = perturb(make(reg_tokens=1))
    x = clips()
    features = model.forward_features(x)
    tokens, prefix = model.forward_intermediates(
        x, 1, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )[0]
    torch.testing.assert_close(torch.cat([prefix, tokens], 1), features)
    result = model.forward_intermediates(x, [0], output_dict=True, stop_early=True)
    assert set(result) == {"image_intermediates", "image_features"}
    assert result["image_intermediates"][0].shape == (2, 24, *GRID)
    with pytest.raises(ValueError, match="NCHW, NCTHW, NLC"):
        model.forward_intermediates(x, output_fmt="NHWC")


@pytest.mark.parametrize("rpe", VIDEO_RPES)
def test_save_and_load_through_timm(rpe, tmp_path):
    args = {**TINY, "rpe": rpe, "causal_time": True, "border": "learned", "tubelet_size": 1}
    model = perturb(timm.create_model(PERFORMER, **args)).eval()
    save_for_hf(model, str(tmp_path), safe_serialization=True, model_args=args)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = clips()
    assert again.causal_time and torch.equal(again(x), model(x))


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_keep_the_weights(channels, tmp_path):
    model = perturb(make())
    save_for_hf(model, str(tmp_path), safe_serialization=True, model_args=TINY)
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, in_chans=channels).eval()
    weight = model.patch_embed.proj.weight
    expected = weight.sum(1, keepdim=True)
    if channels == 4:
        expected = torch.cat([weight, weight[:, :1]], 1) * 0.75
    torch.testing.assert_close(other.patch_embed.proj.weight, expected)

    @pytest.mark.parametrize("sizes", [{"num_frames": 3}, {"num_frames": 3, "patch_size": (8, 8)}])
    def test_frames_that_do_not_fit_change_nothing(self, sizes):
        model, x = make(), clips()
        out, patches = model(x), model.patch_embed.patch_size
        with pytest.raises(ValueError, match="multiple of tubelet_size"):
            model.set_input_size(**sizes)
        assert model.patch_embed.patch_size == patches
        assert torch.equal(model(x), out)


class TestSizes:
    @pytest.mark.parametrize("rpe", [*VIDEO_RPES, "none"])
    @pytest.mark.parametrize("size", [(4, 64, 48), (4, 96, 80), (2, 48, 64), (6, 32, 64)])
    def test_ways_to_another_size_agree(self, rpe, size):
        options = {"rpe": rpe, "border": "learned", "reg_tokens": 1, "causal_time": True}
        dynamic = perturb(make(dynamic_img_size=True, **options))
        state = {n: p.clone() for n, p in dynamic.state_dict().items()}
        x = clips(*size)
        expected = dynamic(x)
        assert all(torch.equal(p, state[n]) for n, p in dynamic.state_dict().items())
        resized = make(**options)
        resized.load_state_dict(state)
        resized.set_input_size(size[1:], num_frames=size[0])
        assert resized.blocks[0].attn.rpe.grid == (size[0] // 2, size[1] // 16, size[2] // 16)
        torch.testing.assert_close(resized(x), expected, rtol=1e-4, atol=1e-5)
        packed = dynamic.forward_packed([x[0], clips()[0], x[1]])
        torch.testing.assert_close(packed[[0, 2]], expected, rtol=1e-4, atol=1e-4)
        loaded = make(**options, img_size=size[1:], num_frames=size[0])
        if rpe in ("offset", "factorized"):
            loaded.load_state_dict(checkpoint_filter_fn(state, loaded))
            torch.testing.assert_close(loaded(x), expected, rtol=1e-4, atol=1e-5)
        elif loaded.patch_embed.num_patches != 24:  # only a table of offsets tells its grid
            with pytest.raises(ValueError, match="set_input_size"):
                checkpoint_filter_fn(state, loaded)

    @pytest.mark.parametrize("rpe", VIDEO_RPES)
    def test_own_size_is_a_no_op(self, rpe):
        model = perturb(make(rpe=rpe))
        before = dict(model.named_parameters())
        model.set_input_size((48, 64), num_frames=4)
        assert all(p is before[n] for n, p in model.named_parameters())

    @pytest.mark.parametrize("rpe", VIDEO_RPES)
    def test_fewer_frames_crop(self, rpe):
        model = perturb(make(rpe=rpe, num_frames=8))
        before = model.blocks[1].attn.rpe().dense()
        positions = model.pos_embed
        model.set_input_size(num_frames=6)
        after = model.blocks[1].attn.rpe().dense()
        torch.testing.assert_close(after, before[:, :36, :36])
        torch.testing.assert_close(model.pos_embed, positions[:, :37])
        assert model(clips(6)).isfinite().all()

    def test_a_crop_is_what_the_first_frames_of_a_causal_clip_see(self):
        model = perturb(make(causal_time=True, num_frames=6, rpe_init="decay"))
        x = clips(6)
        whole = frames(model, x)[:, :2]
        model.set_input_size(num_frames=4)
        torch.testing.assert_close(frames(model, x[:, :, :4]), whole, rtol=1e-5, atol=1e-5)

    def test_more_frames_resample(self):
        model = make(rpe_init="decay", num_frames=8)
        before = model.blocks[0].attn.rpe().offsets
        model.set_input_size(num_frames=14)  # 4 to 7 tokens: every second offset is an old one
        after = model.blocks[0].attn.rpe().offsets
        assert after.shape[1] == 13
        torch.testing.assert_close(after[:, ::2], before, rtol=1e-4, atol=1e-6)

    def test_another_patch_size(self):
        model = perturb(make())
        model.set_input_size((24, 32), (8, 8))
        assert model.patch_embed.proj.weight.shape == (24, 3, 2, 8, 8)
        assert model(clips(4, 24, 32)).isfinite().all()

    def test_padding(self):
        model = perturb(make(dynamic_img_size=True, dynamic_img_pad=True))
        x = clips(4, 40, 64)
        padded = torch.nn.functional.pad(x, (0, 0, 0, 8))
        torch.testing.assert_close(model(x), model(padded))

    def test_refusals(self):
        with pytest.raises(ValueError, match=r"need clips \(B, C, 4, 48, 64\).*got \(2, 3, 6, 48"):
            make()(clips(6))
        with pytest.raises(ValueError, match="whole tubelets"):
            make(dynamic_img_size=True)(clips(3))
        with pytest.raises(ValueError, match=r"\(C, T, H, W\).*2 x 16 x 16"):
            make().forward_packed([torch.randn(3, 48, 64)])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (PERFORMER, {"rpe": "fourier"}, "offset, distance, exponential, factorized, none"),
        (PERFORMER, {"num_frames": 5}, "multiple of tubelet_size"),
        (PERFORMER, {"embed_layer": torch.nn.Identity}, "embed_layer is fixed"),
        (UNMASKED, {"causal_time": True, "patch_drop_rate": 0.5}, "without one-sided axes"),
        (SOFTMAX, {"path": "explicit"}, "path has no meaning for softmax"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        make(name, **options)


def test_weights_of_other_tubelets_are_refused():
    model = make()
    for other in (make(tubelet_size=4), timm.create_model("performer_rpe2d_tiny_patch16_224")):
        with pytest.raises(ValueError):
            checkpoint_filter_fn(other.state_dict(), model)
