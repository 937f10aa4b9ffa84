"""Clips cut into tubelets: boxes of a few frames, each of which becomes a token."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.patch_embed import resample_patch_embed
from torch import Tensor, nn

Size = int | tuple[int, int]


class TubeletEmbed(nn.Module):
    """timm's PatchEmbed for clips: (B, C, T, H, W) -> (B, T' H' W', channels).

    An image, (B, C, H, W), counts as a clip of `num_frames` equal frames. With
    `strict_img_size=False` clips may have other sizes and other numbers of frames, and tokens
    come as (B, T', H', W', channels).
    """

    def __init__(
        self,
        img_size: Size = 224,
        patch_size: Size = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        num_frames: int = 16,
        tubelet_size: int = 2,
        norm_layer: Callable[..., nn.Module] | None = None,
        bias: bool = True,
        strict_img_size: bool = True,
        dynamic_img_pad: bool = False,
        output_fmt: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.tubelet_size = tubelet_size
        self.patch_size: tuple[int, int] = _pair(patch_size)
        self.strict_img_size = strict_img_size
        self.dynamic_img_pad = dynamic_img_pad
        self.flatten = output_fmt is None
        self._set_sizes(_pair(img_size), num_frames)
        box = (tubelet_size, *self.patch_size)
        self.proj = nn.Conv3d(in_chans, embed_dim, box, box, bias=bias, device=device, dtype=dtype)
        self.norm = nn.Identity()
        if norm_layer is not None:
            self.norm = norm_layer(embed_dim, device=device, dtype=dtype)

    def check_frames(self, num_frames: int) -> None:
        """Raise ValueError if the frames are not whole tubelets."""
        if self.tubelet_size < 1 or num_frames < 1 or num_frames % self.tubelet_size:
            raise ValueError(
                "num_frames must be a multiple of tubelet_size, "
                f"got num_frames={num_frames} and tubelet_size={self.tubelet_size}"
            )

    def _set_sizes(self, img_size: tuple[int, int], num_frames: int) -> None:
        self.check_frames(num_frames)
        self.img_size = img_size
        self.num_frames = num_frames
        self.grid_size = self.grid_of(num_frames, *img_size)
        self.num_patches = prod(self.grid_size)

    def grid_of(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """The grid of tokens of a clip."""
        return (frames // self.tubelet_size, *self.dynamic_feat_size((height, width)))

    def set_input_size(
        self,
        img_size: Size | None = None,
        patch_size: Size | None = None,
        num_frames: int | None = None,
    ) -> None:
        if patch_size is not None and _pair(patch_size) != self.patch_size:
            self.patch_size = _pair(patch_size)
            self.proj = _resized(self.proj, self.patch_size)
        new_size = self.img_size if img_size is None else _pair(img_size)
        self._set_sizes(new_size, self.num_frames if num_frames is None else num_frames)

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        return max(self.patch_size) if as_scalar else self.patch_size

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """The spatial part of the grid."""
        (height, width), (h, w) = img_size, self.patch_size
        if self.dynamic_img_pad:
            return ceil(height / h), ceil(width / w)
        return height // h, width // w

    def forward(self, x: Tensor) -> Tensor:
        x = _as_clip(self, x)
        x = self.proj(x).movedim(1, -1)
        return self.norm(x.flatten(1, 3) if self.flatten else x)

    def tubelet(self, frames: Tensor) -> Tensor:
        """Embed one tubelet of a clip, (B, C, tubelet_size, H, W) -> (B, H' W', channels)."""
        return self.norm(self.proj(padded(self, frames)).movedim(1, -1).flatten(1, 3))


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _as_clip(embed: TubeletEmbed, x: Tensor) -> Tensor:
    """A clip of the right size, padded if need be; one call for torch.fx, as it looks at shapes."""
    if x.ndim == 4:
        x = x[:, :, None].expand(-1, -1, embed.num_frames, -1, -1)
    wanted = (embed.num_frames, *embed.img_size)
    if x.ndim != 5 or (embed.strict_img_size and tuple(x.shape[2:]) != wanted):
        frames, height, width = wanted
        raise ValueError(
            f"need clips (B, C, {frames}, {height}, {width}) or images (B, C, {height}, {width}), "
            f"got {tuple(x.shape)}; set_input_size takes another size"
        )
    x = padded(embed, x)
    box = (embed.tubelet_size, *embed.patch_size)
    if not embed.strict_img_size and any(n % b for n, b in zip(x.shape[2:], box, strict=True)):
        raise ValueError(f"a clip of {tuple(x.shape[2:])} is not made of whole tubelets of {box}")
    return x


torch.fx.wrap("_as_clip")


def padded(embed: Any, x: Tensor) -> Tensor:
    """Pad rows and columns with zeros up to whole patches, if `dynamic_img_pad` asks for it.

    For tubelets as for timm's patches.
    """
    height, width = embed.patch_size
    pad = (-x.shape[-2] % height, -x.shape[-1] % width) if embed.dynamic_img_pad else (0, 0)
    return F.pad(x, (0, pad[1], 0, pad[0])) if any(pad) else x


def resized_tubelets(weight: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The weights of tubelets (O, C, t, h, w) for another patch size, each frame as timm does."""
    if tuple(weight.shape[-2:]) == patch_size:
        return weight
    return resample_patch_embed(weight.flatten(1, 2), list(patch_size)).unflatten(
        1, weight.shape[1:3]
    )


def _resized(proj: nn.Conv3d, patch_size: tuple[int, int]) -> nn.Conv3d:
    box = (proj.weight.shape[2], *patch_size)
    with torch.no_grad():
        new = nn.Conv3d(
            *(proj.in_channels, proj.out_channels, box, box),
            bias=proj.bias is not None,
            device=proj.weight.device,
            dtype=proj.weight.dtype,
        )
        new.weight.copy_(resized_tubelets(proj.weight, patch_size))
        if new.bias is not None and proj.bias is not None:
            new.bias.copy_(proj.bias)
    return new
