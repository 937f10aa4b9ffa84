"""The image models for clips: tubelets instead of patches, and a mask over time and space."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from vit_rpe.rpe import Grid

from .masked_vit import MaskedViT, PerformerViT, SoftmaxRPEViT
from .stream import VideoStream
from .tubelets import TubeletEmbed, padded


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

    crop_axes = (0,)
    output_formats = ("NCHW", "NCTHW", "NLC")
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

    def _check_size(
        self,
        img_size: tuple[int, int] | None,
        patch_size: tuple[int, int] | None,
        num_frames: int | None = None,
    ) -> None:
        super()._check_size(img_size, patch_size)
        if num_frames is not None:
            self.patch_embed.check_frames(num_frames)

    def _grid_of(self, x: Tensor) -> Grid:
        frames = self.patch_embed.num_frames if x.ndim == 4 else x.shape[2]
        return self.patch_embed.grid_of(frames, x.shape[-2], x.shape[-1])

    def _pos_embed(self, x: Tensor) -> Tensor:
        if not self.dynamic_img_size:
            return super()._pos_embed(x)
        _, *grid, _ = x.shape
        return self._placed(x.flatten(1, 3), tuple(grid))

    def _embed(self, image: Tensor) -> tuple[Tensor, Grid]:
        """A clip's tokens behind the prefix tokens, (1, tokens, C), and their grid."""
        embed = self.patch_embed
        frames, height, width = (embed.tubelet_size, *embed.patch_size)
        least = (frames, 1, 1) if embed.dynamic_img_pad else (frames, height, width)
        sides = tuple(image.shape[1:])
        if len(sides) != 3 or any(n < b for n, b in zip(sides, least, strict=True)):
            raise ValueError(
                f"a packed clip must be (C, T, H, W) with at least one {frames} x {height} x "
                f"{width} tubelet, got {tuple(image.shape)}"
            )
        tokens = embed.proj(padded(embed, image[None])).movedim(1, -1)
        _, *grid, _ = tokens.shape
        return self._placed(embed.norm(tokens.flatten(1, 3)), tuple(grid)), tuple(grid)


class PerformerVideo(MaskedVideo, PerformerViT):
    """Linear attention with a 3-level mask: the paper's proposal for video."""


class SoftmaxRPEVideo(MaskedVideo, SoftmaxRPEViT):
    """Softmax attention with the logarithm of the same masks as bias."""
