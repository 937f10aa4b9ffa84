"""What our models add: masks, resolutions, packing, choices, TopViT's formula."""

import warnings

import pytest
import timm
import torch
from torch import Tensor

from vit_rpe.features.names import ELEMENTWISE, RANDOM
from vit_rpe.models.checkpoint import checkpoint_filter_fn
from vit_rpe.models.names import RPES

TINY = {"img_size": (48, 64), "depth": 2, "num_classes": 5}
PERFORMER, UNMASKED, SOFTMAX = (
    f"{kind}_tiny_patch16_224" for kind in ("performer_rpe2d", "performer", "vit_rpe2d")
)


def make(name: str = PERFORMER, **options):
    return timm.create_model(name, **{**TINY, **options}).eval()


def perturb(model, scale: float = 0.05):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn_like(p))
    return model


def images(*size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *(size or (48, 64)))


def test_the_papers_model():
    model = timm.create_model("performer_rpe2d")
    assert len(model.blocks) == 12 and model.embed_dim == 768
    attn = model.blocks[11].attn
    assert attn.num_heads == 12 and attn.rpe.table.shape == (12, 27, 27)
    assert model.blocks[0].mlp.fc1.out_features == 3072


@pytest.mark.parametrize("rpe", ["offset", "distance", "exponential"])
@pytest.mark.parametrize("feature_map", [*ELEMENTWISE, *RANDOM])
def test_a_mask_of_ones_changes_nothing(feature_map, rpe):
    masked = make(feature_map=feature_map, rpe=rpe, border="learned")
    plain = make(UNMASKED, feature_map=feature_map)
    shared = {n: p for n, p in masked.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict(shared)
    x = images()
    torch.testing.assert_close(masked(x), plain(x), rtol=1e-5, atol=1e-5)


def test_softmax_with_a_mask_of_ones_is_timms_vit():
    ours = make(SOFTMAX)
    vit = timm.create_model("vit_tiny_patch16_224", **TINY).eval()
    ours.load_state_dict(vit.state_dict(), strict=False)
    x = images()
    torch.testing.assert_close(ours(x), vit(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
def test_position_enters_through_the_mask_alone(name):
    options = {"pos_embed": "none", "global_pool": "avg", "class_token": False}
    x = images()
    patches = x.unfold(2, 16, 16).unfold(3, 16, 16)  # B C 3 4 16 16
    order = torch.randperm(12)
    mixed = patches.flatten(2, 3)[:, :, order].unflatten(2, (3, 4))
    mixed = mixed.permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    plain = perturb(make(name, rpe="none", **options))
    torch.testing.assert_close(plain(mixed), plain(x), rtol=1e-4, atol=1e-5)
    masked = perturb(make(name, rpe_init="decay", **options))
    assert (masked(mixed) - masked(x)).abs().max() > 1e-3


@pytest.mark.parametrize("rpe", [*RPES, "none"])
@pytest.mark.parametrize("feature_map", [*ELEMENTWISE, *RANDOM])
def test_ten_steps_lower_the_loss(feature_map, rpe):
    model = make(feature_map=feature_map, rpe=rpe, rpe_init="decay", depth=1).train()
    x, y = images(batch=4), torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
def test_compiled_training_step(name):
    model = make(name, depth=1, rpe_init="decay").train()
    x, y = images(), torch.tensor([0, 1])
    compiled = torch.compile(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())


class TestResolutions:
    @pytest.mark.parametrize("rpe", RPES)
    def test_own_size_is_a_no_op(self, rpe):
        model = perturb(make(rpe=rpe))
        before = dict(model.named_parameters())
        model.set_input_size((48, 64))
        assert all(p is before[n] for n, p in model.named_parameters())

    @pytest.mark.parametrize("rpe", RPES)
    @pytest.mark.parametrize("size", [(64, 48), (96, 80)])
    def test_three_ways_to_another_size_agree(self, rpe, size):
        options = {"rpe": rpe, "border": "learned", "reg_tokens": 1}
        dynamic = perturb(make(dynamic_img_size=True, **options))
        state = {n: p.clone() for n, p in dynamic.state_dict().items()}
        x = images(*size)
        expected = dynamic(x)
        assert all(torch.equal(p, state[n]) for n, p in dynamic.state_dict().items())
        resized = make(**options)
        resized.load_state_dict(state)
        resized.set_input_size(size)
        assert resized.blocks[0].attn.rpe.grid == (size[0] // 16, size[1] // 16)
        resized_out = resized(x)
        torch.testing.assert_close(resized_out, expected, rtol=1e-4, atol=1e-5)
        loaded = make(img_size=size, **options)
        if rpe == "offset":
            loaded.load_state_dict(checkpoint_filter_fn(state, loaded))
            torch.testing.assert_close(loaded(x), expected, rtol=1e-4, atol=1e-5)
        elif size == (96, 80):  # only a table of offsets tells what its grid was, if not square
            with pytest.raises(ValueError, match="set_input_size"):
                checkpoint_filter_fn(state, loaded)

    @pytest.mark.parametrize("rpe", RPES)
    def test_square_checkpoints_load_at_any_size(self, rpe):
        model = perturb(make(img_size=64, dynamic_img_size=True, rpe=rpe))
        loaded = make(img_size=(96, 80), rpe=rpe)
        loaded.load_state_dict(checkpoint_filter_fn(model.state_dict(), loaded))
        x = images(96, 80)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("grid", "warns"), [((4, 3), True), ((3, 4), True), ((4, 4), False)])
    def test_positions_without_a_grid_are_taken_with_a_warning(self, grid, warns):
        size = tuple(16 * n for n in grid)
        state = make(UNMASKED, img_size=(48, 64) if warns else size).state_dict()
        model = make(UNMASKED, img_size=size)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            loaded = checkpoint_filter_fn(state, model)
        assert torch.equal(loaded["pos_embed"], state["pos_embed"])
        assert any("does not tell on which grid" in str(w.message) for w in seen) == warns

    def test_sizes_in_flight_do_not_mix_under_checkpointing(self):
        model = perturb(make(dynamic_img_size=True, rpe_init="decay"))
        small, large = images(32, 96), images(96, 32)  # as many tokens, another grid
        grads = {}
        for checkpointing in (False, True):
            model.set_grad_checkpointing(checkpointing)
            first, second = model(small), model(large)
            loss = first.square().sum() + second.sum()
            grads[checkpointing] = torch.autograd.grad(loss, list(model.parameters()))
        for plain, checkpointed in zip(grads[False], grads[True], strict=True):
            torch.testing.assert_close(plain, checkpointed)

    def test_intermediates_of_a_dynamic_size(self):
        model = perturb(make(dynamic_img_size=True, rpe_init="decay"))
        x = images(96, 32)
        final, parts = model.forward_intermediates(x, norm=True)
        torch.testing.assert_close(final, model.forward_features(x))
        assert parts[-1].shape[-2:] == (6, 2)

    @pytest.mark.parametrize(
        "sizes", [{"img_size": (8, 8)}, {"img_size": (48, 15)}, {"patch_size": (64, 16)}]
    )
    def test_a_size_that_does_not_fit_changes_nothing(self, sizes):
        model = perturb(make())
        x = images()
        before, out = model.patch_embed.grid_size, model(x)
        with pytest.raises(ValueError, match="no whole patch"):
            model.set_input_size(**sizes)
        assert model.patch_embed.grid_size == before
        assert torch.equal(model(x), out)

    def test_a_static_model_refuses_another_size(self):
        with pytest.raises(AssertionError, match="height"):
            make()(images(96, 80))


class TestPacking:
    SIZES = [(48, 64), (64, 32), (16, 16), (80, 96), (48, 64)]

    @pytest.mark.parametrize("name", [PERFORMER, UNMASKED, SOFTMAX])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"reg_tokens": 2, "no_embed_class": True},
            {"class_token": False, "global_pool": "avg", "pos_embed": "none"},
        ],
    )
    def test_equals_one_by_one(self, name, options):
        model = perturb(make(name, dynamic_img_size=True, **options))
        pack = [torch.randn(3, *size) for size in self.SIZES]
        alone = torch.cat([model(image[None]) for image in pack])
        torch.testing.assert_close(model.forward_packed(pack), alone, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", [PERFORMER, SOFTMAX])
    def test_images_are_padded_as_one_by_one(self, name):
        model = perturb(make(name, dynamic_img_size=True, dynamic_img_pad=True))
        pack = [torch.randn(3, *size) for size in ((35, 55), (48, 64), (17, 7))]
        alone = torch.cat([model(image[None]) for image in pack])
        torch.testing.assert_close(model.forward_packed(pack), alone, rtol=1e-4, atol=1e-4)

    def test_needs_no_dynamic_model(self):
        static, dynamic = perturb(make()), make(dynamic_img_size=True)
        dynamic.load_state_dict(static.state_dict())
        pack = [torch.randn(3, *size) for size in self.SIZES]
        torch.testing.assert_close(static.forward_packed(pack), dynamic.forward_packed(pack))

    def test_gradients_flow(self):
        model = make(rpe_init="decay").train()
        model.forward_packed([torch.randn(3, 48, 64), torch.randn(3, 64, 32)]).sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    def test_refusals(self):
        with pytest.raises(ValueError, match=r"16 x 16 patch, got \(3, 8, 64\)"):
            make().forward_packed([torch.randn(3, 8, 64)])
        with pytest.raises(ValueError, match="at least one image"):
            make().forward_packed([])
        with pytest.raises(ValueError, match="drop_path_rate=0"):
            make(drop_path_rate=0.2).train().forward_packed([torch.randn(3, 48, 64)])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (PERFORMER, {"rpe": "fourier"}, "offset, distance, exponential, none"),
        (PERFORMER, {"feature_map": "cos"}, "relu, elu, square, favor, favor_hyperbolic"),
        (PERFORMER, {"border": "none"}, "ones, learned"),
        (PERFORMER, {"path": "fft"}, "auto, explicit, product, scan"),
        (PERFORMER, {"path": "scan"}, "'scan' needs .* Exponential masks, got Toeplitz"),
        (PERFORMER, {"rpe_init": "zeros"}, "'ones' or 'decay'"),
        (PERFORMER, {"num_features": 32}, "num_features=32 has no meaning for feature_map='relu'"),
        (PERFORMER, {"rpe_terms": 2}, "rpe_terms=2 has no meaning"),
        (PERFORMER, {"attn_drop_rate": 0.1}, "needs path='explicit'"),
        (PERFORMER, {"patch_drop_rate": 0.5}, "patch_drop_rate"),
        (PERFORMER, {"attn_layer": torch.nn.Identity}, "attn_layer is fixed"),
        (SOFTMAX, {"feature_map": "relu"}, "feature_map has no meaning for softmax"),
        (SOFTMAX, {"path": "explicit"}, "path has no meaning for softmax"),
        ("topvit_base_patch16_224", {"rpe": "distance"}, "rpe is fixed in TopViT"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        make(name, **options)


def test_what_can_be_honoured_is():
    model = make(attn_drop_rate=0.3, path="explicit").train()
    assert model.blocks[0].attn.attn_drop.p == 0.3
    assert not torch.equal(model(images()), model(images()))
    assert make(UNMASKED, patch_drop_rate=0.5).train()(images()).isfinite().all()


def topvit_attention(attn, x: Tensor) -> Tensor:
    """The authors' attention, written out: L x L, a border of ones around |table|, 1e-8 terms."""
    q, k, v = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    rows, columns = attn.rpe.grid
    place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    offset = place[:, None] - place + torch.tensor([rows - 1, columns - 1])
    mask = torch.ones(attn.num_heads, x.shape[1], x.shape[1])
    mask[:, 1:, 1:] = attn.rpe.table[:, offset[..., 0], offset[..., 1]]
    kernel = (torch.relu(q / attn.head_dim**0.5) + 1e-8) @ (torch.relu(k) + 1e-8).mT
    weights = kernel * mask.abs() + 1e-8
    out = weights / weights.sum(-1, keepdim=True) @ v
    return attn.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("path", ["auto", "explicit", "product"])
def test_topvit_is_its_formula(path):
    model = perturb(make("topvit_base_patch16_224", depth=1, path=path))
    attn = model.blocks[0].attn
    with torch.no_grad():
        attn.rpe.table.add_(torch.randn_like(attn.rpe.table))  # negative entries, too
    x = torch.randn(2, 13, 768)
    torch.testing.assert_close(attn(x), topvit_attention(attn, x), rtol=1e-5, atol=1e-5)
    empty = torch.zeros(2, 13, 768)
    torch.testing.assert_close(attn(empty), topvit_attention(attn, empty), rtol=1e-5, atol=1e-5)


def test_topvit_starts_from_ones():
    table = timm.create_model("topvit_base_patch16_224", depth=1).blocks[0].attn.rpe.table
    assert (table == 1).all() and table.shape == (12, 27, 27)


def test_a_class_token_on_one_side_only_is_said_in_words():
    shape = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 3}
    name = "performer_rpe2d_tiny_patch16_224"
    token = timm.create_model(name, **shape)
    plain = timm.create_model(name, **shape, class_token=False, global_pool="avg")
    with pytest.raises(ValueError, match="the state dict has a class token, the model has none"):
        checkpoint_filter_fn(token.state_dict(), plain)
    with pytest.raises(ValueError, match="the model has a class token, the state dict has none"):
        checkpoint_filter_fn(plain.state_dict(), token)
