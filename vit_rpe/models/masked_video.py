"""The image models for clips: tubelets instead of patches, and a mask over time and space."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from torch import Tensor

from .masked_vit import Grid, MaskedViT, PerformerViT, SoftmaxRPEViT
from .stream import VideoStream
from .tubelets import TubeletEmbed


class MaskedVideo(MaskedViT):
    """A ViT for clips (B, C, T, H, W); an image (B, C, H, W) counts as a still clip.

    Args:
        num_frames: of a clip, a multiple of `tubelet_size`. Fewer frames, set later, crop the masks
            along time; more frames resample them.
        tubelet_size: frames in a token.
        causal_time: no patch sees a later one: the masks are one-sided along time. Class and
            register tokens then read patches, but are not read by them.
        rpe: offset | distance | exponential | factorized (a table of time times one of space) |
            none (with `causal_time`: ones for what is not later).
        options: as in the image models.
    """

    fixed_step = (0,)
    patch_embed: TubeletEmbed

    def __init__(
        self,
        *,
        num_frames: int = 16,
        tubelet_size: int = 2,
        causal_time: bool = False,
        **options: Any,
    ):
        for name in ("embed_layer", "one_sided"):
            if name in options:
                raise ValueError(f"{name} is fixed in {type(self).__name__}")
        embed = partial(TubeletEmbed, num_frames=num_frames, tubelet_size=tubelet_size)
        one_sided = (0,) if causal_time else ()
        super().__init__(embed_layer=embed, one_sided=one_sided, **options)
        self.causal_time = causal_time

    @property
    def num_frames(self) -> int:
        """Frames of a clip, as it is now."""
        return self.patch_embed.num_frames

    def stream(self) -> VideoStream:
        """The model on frames as they come, one tubelet at a time. It needs `causal_time`."""
        return VideoStream(self)

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
        """timm's, for clips: intermediates are (B, C, T', H', W'), of images their mean over time.

        `output_fmt="NLC"` gives the tokens as they are.
        """
        if output_fmt not in ("NCHW", "NCTHW", "NLC"):
            raise ValueError(f"output_fmt must be NCHW, NCTHW or NLC, got {output_fmt!r}")
        take, last = feature_take_indices(len(self.blocks), indices)
        options = {"attn_mask": attn_mask, "is_causal": is_causal}
        options = options if attn_mask is not None or is_causal else {}
        grid, taken = self._grid_of(x), []
        still = x.ndim == 4 and output_fmt == "NCHW"
        with self._on_the_grid_of(x):
            x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
            for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
                wrap = partial(checkpoint, block) if self.grad_checkpointing else block
                x = wrap(x, **options)
                if i in take:
                    taken.append(self.norm(x) if norm else x)
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

    def _grid_of(self, x: Tensor) -> Grid:
        frames = self.patch_embed.num_frames if x.ndim == 4 else x.shape[2]
        return self.patch_embed.grid_of(frames, x.shape[-2], x.shape[-1])

    def _on_the_grid_of(self, x: Tensor) -> AbstractContextManager:
        if not self.dynamic_img_size:
            return nullcontext()
        grid = self._grid_of(x)
        return nullcontext() if grid == self.patch_embed.grid_size else self._on_grids([grid])

    def _pos_embed(self, x: Tensor) -> Tensor:
        if not self.dynamic_img_size:
            return super()._pos_embed(x)
        _, *grid, _ = x.shape
        return self._placed(x.flatten(1, 3), tuple(grid))

    def _embed(self, image: Tensor) -> tuple[Tensor, Grid]:
        """A clip's tokens behind the prefix tokens, (1, tokens, C), and their grid."""
        embed = self.patch_embed
        frames, height, width = box = (embed.tubelet_size, *embed.patch_size)
        sides = tuple(image.shape[1:])
        if len(sides) != 3 or any(n < b for n, b in zip(sides, box, strict=True)):
            raise ValueError(
                f"a packed clip must be (C, T, H, W) with at least one {frames} x {height} x "
                f"{width} tubelet, got {tuple(image.shape)}"
            )
        tokens = embed.proj(image[None]).movedim(1, -1)
        _, *grid, _ = tokens.shape
        return self._placed(embed.norm(tokens.flatten(1, 3)), tuple(grid)), tuple(grid)


class PerformerVideo(MaskedVideo, PerformerViT):
    """Linear attention with a 3-level mask: the paper's proposal for video."""


class SoftmaxRPEVideo(MaskedVideo, SoftmaxRPEViT):
    """Softmax attention with the logarithm of the same masks as bias."""
