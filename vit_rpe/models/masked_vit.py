"""timm's VisionTransformer with a mask over its grid of patches in every attention layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from timm.layers.helpers import to_2tuple
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vit_rpe.attention import (
    PATHS,
    AttentionPlan,
    AttentionRequest,
    PathName,
    describe_plan,
    plan_attention,
)
from vit_rpe.features import FeatureMap, TopViTFeatures, make_features
from vit_rpe.layers import MaskedAttention, MaskedLinearAttention, MaskedSoftmaxAttention
from vit_rpe.rpe import Border, Grid, ReadOnlyBorder, TokenLayout, resample

from .names import choose, make_rpe
from .tubelets import padded


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
    crop_axes: ClassVar[tuple[int, ...]] = ()
    """Axes along which a shorter grid crops the masks, as in `vit_rpe.rpe.GridRPE`."""
    output_formats: ClassVar[tuple[str, ...]] = ("NCHW", "NLC")
    """The formats of `forward_intermediates`."""

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
                crop_axes=self.crop_axes,
                **device,
            )
            prefix = self.num_prefix_tokens
            if learned and attn.rpe is not None and prefix:
                attn.border = Border(prefix, attn.num_heads, rpe_gain, bool(one_sided), **device)
            elif one_sided and prefix:
                attn.border = ReadOnlyBorder(prefix)

    @property
    def num_tokens(self) -> int:
        """Prefix tokens and patches of an image or clip of the model's own size."""
        return self.num_prefix_tokens + self.patch_embed.num_patches

    @torch.no_grad()
    def attention_plan(
        self, batch_size: int = 1, device: torch.device | None = None
    ) -> AttentionPlan:
        """How the attention layers compute a batch, by default on the device where the model is.

        With `path="auto"` each call is planned for the device and the batch at hand. A training run
        fixes the path once (`model.path = plan.path`): all processes and resumed runs agree.
        """
        return plan_attention(self._request(batch_size, device))

    @torch.no_grad()
    def describe_attention(self, batch_size: int = 1, device: torch.device | None = None) -> str:
        """Say in one line what `attention_plan` plans; `vit_rpe.attention.explain` says why."""
        return describe_plan(self._request(batch_size, device))

    def _request(self, batch_size: int, device: torch.device | None) -> AttentionRequest:
        return self._attentions()[0].attention_request(batch_size, device, self.num_tokens)

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

        timm's own looks only at the number of tokens: 6 x 8 to 8 x 6 would keep wrong positions.
        A size that does not fit is refused before anything changes.
        """
        self._check_size(img_size, patch_size, **sizes)
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

    def _check_size(
        self, img_size: tuple[int, int] | None, patch_size: tuple[int, int] | None
    ) -> None:
        """Raise ValueError if images of this size have no whole patch."""
        embed = self.patch_embed
        image: Any = to_2tuple(embed.img_size if img_size is None else img_size)
        patch: Any = to_2tuple(embed.patch_size if patch_size is None else patch_size)
        if min(patch) < 1 or any(n < p for n, p in zip(image, patch, strict=True)):
            raise ValueError(f"an image of {tuple(image)} has no whole patch of {tuple(patch)}")

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        layout = self._layout(x, attn_mask)
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        x, _ = self._run_blocks(x, layout, is_causal)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """timm's, on any grid: intermediates are (B, C, H', W'), of clips (B, C, T', H', W').

        `output_fmt="NLC"` gives the tokens as they are.
        """
        self._check_format(output_fmt)
        take, last = feature_take_indices(len(self.blocks), indices)
        layout, grid = self._layout(x, attn_mask), self._grid_of(x)
        still = x.ndim == 4 and len(grid) == 3 and output_fmt == "NCHW"
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        depth = last + 1 if stop_early else None
        x, taken = self._run_blocks(x, layout, is_causal, take, depth)
        taken = [self.norm(y) if norm else y for y in taken]
        prefix = [y[:, : self.num_prefix_tokens] for y in taken]
        parts = [y[:, self.num_prefix_tokens :] for y in taken]
        if output_fmt != "NLC":
            parts = [y.transpose(1, 2).unflatten(-1, grid) for y in parts]
            parts = [y.mean(2) if still else y.contiguous() for y in parts]
        with_prefix = return_prefix_tokens and self.num_prefix_tokens > 0
        if output_dict:
            result = {"image_intermediates": parts}
            result |= {"image_intermediates_prefix": prefix} if with_prefix else {}
            return result if intermediates_only else result | {"image_features": self.norm(x)}
        outputs = list(zip(parts, prefix, strict=True)) if with_prefix else parts
        return outputs if intermediates_only else (self.norm(x), outputs)

    def _check_format(self, output_fmt: str) -> None:
        formats = self.output_formats
        if output_fmt not in formats:
            raise ValueError(f"output_fmt must be one of {', '.join(formats)}, got {output_fmt!r}")

    def _run_blocks(
        self,
        x: Tensor,
        layout: Tensor | TokenLayout | None,
        is_causal: bool = False,
        take: Collection[int] = (),
        depth: int | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The tokens after the first `depth` blocks, and after each of the blocks in `take`.

        timm's blocks hand `attn_mask` to their attention as it is: it carries the layout.
        """
        options = {"attn_mask": layout, "is_causal": is_causal}
        options = options if layout is not None or is_causal else {}
        taken = []
        for i, block in enumerate(self.blocks[:depth]):
            x = checkpoint(block, x, **options) if self.grad_checkpointing else block(x, **options)
            if i in take:
                taken.append(x)
        return x, taken

    def forward_packed(self, images: Sequence[Tensor]) -> Tensor:
        """The logits of images of any sizes, each (C, H, W), in one call: (images, classes).

        Their tokens stand in one sequence, and no image sees another. Stochastic depth would
        drop the whole pack, so training with it is refused.
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
        x, _ = self._run_blocks(x, TokenLayout(grids))
        pooled = [self.pool(part) for part in self.norm(x).split(lengths, 1)]
        return self.head(self.head_drop(self.fc_norm(torch.cat(pooled))))

    def _embed(self, image: Tensor) -> tuple[Tensor, Grid]:
        """An image's tokens behind the prefix tokens, (1, tokens, C), and their grid."""
        height, width = self.patch_embed.patch_size
        least = (1, 1) if self.patch_embed.dynamic_img_pad else (height, width)
        if image.ndim != 3 or image.shape[-2] < least[0] or image.shape[-1] < least[1]:
            raise ValueError(
                f"a packed image must be (C, H, W) with at least one {height} x {width} patch, "
                f"got {tuple(image.shape)}"
            )
        x = padded(self.patch_embed, image[None])
        patches = self.patch_embed.norm(self.patch_embed.proj(x).flatten(2).transpose(1, 2))
        grid = (x.shape[-2] // height, x.shape[-1] // width)
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

    def _layout(self, x: Tensor, attn_mask: Tensor | None) -> Tensor | TokenLayout | None:
        """The layout of the tokens of x, where it is not that of the layers' own grid."""
        if not self.dynamic_img_size:
            return attn_mask
        grid = self._grid_of(x)
        return attn_mask if grid == self.patch_embed.grid_size else TokenLayout((grid,), attn_mask)

    def _grid_of(self, x: Tensor) -> Grid:
        """The grid of tokens that a batch of images makes."""
        return self.patch_embed.dynamic_feat_size(x.shape[-2:])  # pyright: ignore


class PerformerViT(MaskedViT):
    """Linear attention by a feature map, masked by relative positions: the paper's image model.

    Args:
        feature_map: relu | elu | square | favor | favor_hyperbolic.
        num_features: of the random feature maps; the head dimension by default.
        unit_norm: queries and keys of length 1.
        path: auto | explicit | product | scan. With `auto` each call takes the cheapest for its
            device, size and batch; `attention_plan` tells which, and setting `path` fixes it.
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
        if path != "auto":
            self.attention_plan()  # a path that the masks do not allow is refused here

    @property
    def path(self) -> str:
        """The path of every attention layer; with `auto` that of one sample on this device."""
        path = self._attentions()[0].path
        return self.attention_plan().path if path == "auto" else path

    @path.setter
    def path(self, path: PathName) -> None:
        choose("path", path, dict.fromkeys(PATHS))
        for attn in self._attentions():
            attn.path = path

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
