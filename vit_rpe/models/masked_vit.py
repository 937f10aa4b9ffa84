"""timm's VisionTransformer with a mask over its grid of patches in every attention layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vit_rpe.attention import MaskedLinearAttention, MaskedSoftmaxAttention
from vit_rpe.attention.functional import PATHS
from vit_rpe.attention.layer import MaskedAttention
from vit_rpe.features import FeatureMap
from vit_rpe.rpe import Border, OneWayBorder
from vit_rpe.rpe.resize import resample

from .choices import TopViTFeatures, choose, make_features, make_rpe

Grid = tuple[int, ...]


class MaskedViT(VisionTransformer):
    """A ViT whose attention layers are masked by relative positions.

    Args:
        rpe: offset | distance | exponential | none.
        rpe_init: ones | decay; rpe_gain, rpe_terms: see `vit_rpe.rpe`.
        rpe_positive: exp | abs, how a parameter becomes a weight.
        border: ones | learned, the weights between prefix tokens and patches.
        one_sided: axes of the grid along which a patch sees no later one; class and register tokens
            then read patches, but are not read by them.
        options: everything that timm's VisionTransformer takes.
    """

    attention: ClassVar[type[MaskedAttention]]
    fixed_step: ClassVar[tuple[int, ...]] = ()
    """Axes along which a shorter grid crops the masks, as in `vit_rpe.rpe.GridRPE`."""

    def __init__(
        self,
        *,
        rpe: str = "offset",
        rpe_init: str = "ones",
        rpe_gain: float = 1.0,
        rpe_terms: int = 1,
        rpe_positive: str = "exp",
        border: str = "ones",
        one_sided: Sequence[int] = (),
        **options: Any,
    ):
        if "attn_layer" in options:
            raise ValueError(f"{type(self).__name__} brings its own attention; attn_layer is fixed")
        if options.get("patch_drop_rate", 0.0) > 0 and (rpe != "none" or one_sided):
            raise ValueError(
                "patch_drop_rate would tear holes into the mask's grid; use rpe='none' "
                "without one-sided axes"
            )
        learned = choose("border", border, {"ones": False, "learned": True})
        super().__init__(attn_layer=self.attention, **options)
        device = {"device": options.get("device"), "dtype": options.get("dtype")}
        for attn in self._attentions():
            attn.num_prefix_tokens = self.num_prefix_tokens
            attn.rpe = make_rpe(
                rpe,
                self.patch_embed.grid_size,
                attn.num_heads,
                rpe_terms,
                gain=rpe_gain,
                init=rpe_init,
                positive=rpe_positive,
                one_sided=one_sided,
                fixed_step=self.fixed_step,
                **device,
            )
            prefix = self.num_prefix_tokens
            if learned and attn.rpe is not None and prefix:
                attn.border = Border(prefix, attn.num_heads, rpe_gain, bool(one_sided), **device)
            elif one_sided and prefix:
                attn.border = OneWayBorder(prefix)

    def _attentions(self) -> list[Any]:
        """The attention layers, each of the class `attention`."""
        return [block.attn for block in self.blocks]

    @torch.jit.ignore()
    def no_weight_decay(self) -> set[str]:
        masks = {n for n, _ in self.named_parameters() if ".attn.rpe." in n or ".attn.border." in n}
        return super().no_weight_decay() | masks

    def set_input_size(
        self,
        img_size: tuple[int, int] | None = None,
        patch_size: tuple[int, int] | None = None,
        **sizes: int | None,
    ) -> None:
        """Another resolution or patch size; positions and masks are resampled.

        timm's own looks at the number of tokens alone: 6 x 8 to 8 x 6 would keep wrong positions.
        """
        old = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size=img_size, patch_size=patch_size, **sizes)
        new = self.patch_embed.grid_size
        if self.pos_embed is not None and new != old:
            self.pos_embed = nn.Parameter(
                self._positions(new, old).detach(), self.pos_embed.requires_grad
            )
        for attn in self._attentions():
            if attn.rpe is not None:
                attn.rpe.resize(new)

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        with self._on_the_grid_of(x):
            return super().forward_features(x, attn_mask, is_causal)

    def forward_intermediates(self, x: Tensor, *args: Any, **options: Any) -> Any:
        with self._on_the_grid_of(x):
            return super().forward_intermediates(x, *args, **options)

    def forward_packed(self, images: Sequence[Tensor]) -> Tensor:
        """The logits of images of any sizes, each (C, H, W), in one call: (images, classes).

        Their tokens stand in one sequence, and no image sees another. What acts on whole samples
        would act on the whole pack: stochastic depth is refused in training.
        """
        if self.training and any(getattr(b.drop_path1, "drop_prob", 0) for b in self.blocks):
            raise ValueError(
                "forward_packed in training needs drop_path_rate=0: a pack is one sample"
            )
        if not images:
            raise ValueError("forward_packed needs at least one image")
        tokens, grids = zip(*(self._embed(image) for image in images), strict=True)
        lengths = [part.shape[1] for part in tokens]
        x = self.norm_pre(torch.cat(tokens, 1))
        with self._on_grids(grids):
            x = self.norm(self.blocks(x))
        pooled = [self.pool(part) for part in x.split(lengths, 1)]
        return self.head(self.head_drop(self.fc_norm(torch.cat(pooled))))

    def _embed(self, image: Tensor) -> tuple[Tensor, Grid]:
        """An image's tokens behind the prefix tokens, (1, tokens, C), and their grid."""
        height, width = self.patch_embed.patch_size
        if image.ndim != 3 or image.shape[-2] < height or image.shape[-1] < width:
            raise ValueError(
                f"a packed image must be (C, H, W) with at least one {height} x {width} patch, "
                f"got {tuple(image.shape)}"
            )
        patches = self.patch_embed.norm(
            self.patch_embed.proj(image[None]).flatten(2).transpose(1, 2)
        )
        grid = (image.shape[-2] // height, image.shape[-1] // width)
        return self._placed(patches, grid), grid

    def _placed(self, patches: Tensor, grid: Grid) -> Tensor:
        """The patches of a grid, (B, tokens, C), with their positions, behind the prefix tokens."""
        tokens = [t for t in (self.cls_token, self.reg_token) if t is not None]
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens]
        if self.pos_embed is None:
            return torch.cat([*prefix, patches], 1)
        positions = self._positions(grid, self.patch_embed.grid_size)
        if self.no_embed_class:
            return self.pos_drop(torch.cat([*prefix, patches + positions], 1))
        return self.pos_drop(torch.cat([*prefix, patches], 1) + positions)

    def _positions(self, grid: Grid, old: Grid) -> Tensor:
        if grid == old:
            return self.pos_embed
        prefix = 0 if self.no_embed_class else self.num_prefix_tokens
        return resample_positions(self.pos_embed, grid, old, prefix)

    def _on_the_grid_of(self, x: Tensor) -> AbstractContextManager:
        if not self.dynamic_img_size:
            return nullcontext()
        grid = self.patch_embed.dynamic_feat_size(x.shape[-2:])  # pyright: ignore
        return nullcontext() if grid == self.patch_embed.grid_size else self._on_grids([grid])

    @contextmanager
    def _on_grids(self, grids: Sequence[Grid]) -> Iterator[None]:
        """Inside, the blocks know that these are the grids of their tokens.

        They are wrapped rather than marked: gradient checkpointing calls them again later, perhaps
        after another image size has passed, and must find the same grids.
        """
        blocks = self.blocks
        self.blocks = nn.Sequential(*(_OnGrids(block, grids) for block in blocks))
        try:
            yield
        finally:
            self.blocks = blocks


class _OnGrids(nn.Module):
    """A block, called for tokens of given grids."""

    def __init__(self, block: nn.Module, grids: Sequence[Grid]):
        super().__init__()
        self.block = block
        self.grids = grids

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        attn: Any = self.block.attn
        attn.grids = self.grids
        try:
            return self.block(x, **options)
        finally:
            attn.grids = None


class PerformerViT(MaskedViT):
    """Linear attention by a feature map, masked by relative positions: the paper's image model.

    Args:
        feature_map: relu | elu | square | favor | favor_hyperbolic.
        num_features: of the random feature maps; the head dimension by default.
        unit_norm: queries and keys of length 1.
        path: auto | explicit | product | scan. `auto` is settled when the model is built, and again
            when it takes another size; the attribute `path` then names the path.
        options: as in `MaskedViT`.
    """

    attention = MaskedLinearAttention

    def __init__(
        self,
        *,
        feature_map: str = "relu",
        num_features: int | None = None,
        unit_norm: bool = False,
        path: str = "auto",
        attn_drop_rate: float = 0.0,
        **options: Any,
    ):
        choose("path", path, dict.fromkeys(PATHS))
        if attn_drop_rate > 0 and path != "explicit":
            raise ValueError(f"attn_drop_rate={attn_drop_rate} needs path='explicit', got {path!r}")
        super().__init__(**options)
        for attn in self._attentions():
            attn.path = path
            attn.attn_drop.p = attn_drop_rate
            attn.features = self._features(
                feature_map, attn.head_dim, num_features, unit_norm, options.get("device")
            )
        self._wanted_path = path
        self._fix_path()

    @property
    def path(self) -> str:
        """The path of every attention layer."""
        return self._attentions()[0].path

    def set_input_size(self, *args: Any, **options: Any) -> None:
        super().set_input_size(*args, **options)
        self._fix_path()

    def _fix_path(self) -> None:
        tokens = self.num_prefix_tokens + self.patch_embed.num_patches
        device = self.patch_embed.proj.weight.device
        for attn in self._attentions():
            attn.path = self._wanted_path
        first, *others = self._attentions()
        first.fix_path(tokens, device)
        for attn in others:
            attn.path = first.path

    def _features(self, name: str, head_dim: int, *options: Any) -> FeatureMap:
        return make_features(name, head_dim, *options)


class SoftmaxRPEViT(MaskedViT):
    """Ordinary softmax attention with the same masks, as a bias of its logits."""

    attention = MaskedSoftmaxAttention

    def __init__(self, **options: Any):
        for name in ("feature_map", "num_features", "unit_norm", "path"):
            if name in options:
                raise ValueError(f"{name} has no meaning for softmax attention")
        super().__init__(**options)


class TopViT(PerformerViT):
    """The authors' TopViT: |table| from ones, a border of ones, 1e-8 on features and weights."""

    def __init__(self, **options: Any):
        for name in ("feature_map", "num_features", "unit_norm", "rpe", "rpe_init", "border"):
            if name in options:
                raise ValueError(f"{name} is fixed in TopViT; performer_rpe2d has the choice")
        super().__init__(rpe_positive="abs", **options)
        for attn in self._attentions():
            attn.floor = 1e-8

    def _features(self, name: str, head_dim: int, *options: Any) -> FeatureMap:
        return TopViTFeatures()


def resample_positions(positions: Tensor, grid: Grid, old: Grid, prefix: int) -> Tensor:
    """Absolute positions of one grid for another; timm's way, and it takes non-square grids.

    In a clip every frame is resampled like an image; fewer frames are the first ones, more frames
    lie between those that are there.
    """
    if len(grid) == 2:
        return resample_abs_pos_embed(
            positions, new_size=list(grid), old_size=list(old), num_prefix_tokens=prefix
        )
    first, rest = positions[:, :prefix], positions[0, prefix:].unflatten(0, (old[0], -1))
    rest = rest[: grid[0]]
    if old[1:] != grid[1:]:
        images = [resample_positions(frame[None], grid[1:], old[1:], 0) for frame in rest]
        rest = torch.cat(images)
    rest = resample(rest, grid[0], 0)
    return torch.cat([first, rest.flatten(0, 1)[None]], 1)
