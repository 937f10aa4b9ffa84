"""Image models become video models that see a still clip as the image."""

from __future__ import annotations

from copy import deepcopy
from math import log
from typing import Any

import torch
from timm.models import create_model
from torch import Tensor

from vit_rpe.rpe import Border, ExponentialRPE, OffsetRPE

from .checkpoint import PATCHES
from .masked_video import MaskedVideo
from .masked_vit import MaskedViT, TopViT

# Round-off of float32 through deep models stays below this, and no other argument does.
_ROUND_OFF = 1e-3


def inflate(
    model: MaskedViT,
    architecture: str,
    *,
    num_frames: int = 16,
    tubelet_size: int = 2,
    **model_args: Any,
) -> MaskedVideo:
    """A video model with the weights of an image model; on a still clip their logits are equal.

    Each patch stands T' times in a clip, once for each tubelet, and would outweigh the class token:
    the mask, and what prefix tokens give to patches, are divided by T'. Along time the mask starts
    constant. Positions are repeated, the patch embedding is spread over the frames of a tubelet.

    In the end both models see one random image: arguments that are not those of the image model are
    refused, even if all shapes fit.

    Args:
        model: one of our image models with `rpe="offset"` or `"exponential"`; timm's ViTs come here
            by way of `convert`. A border of ones becomes a learned one, which can be divided.
        architecture: the name of the video model, such as performer_rpe3d_tiny_patch16_224.
        model_args: what the image model was made with (`img_size`, `num_classes`, `rpe`, ...), and
            `causal_time`, if there are no prefix tokens: patches would have to read them.
    """
    _check(model, model_args)
    args = {**model_args, "num_frames": num_frames, "tubelet_size": tubelet_size}
    if model.num_prefix_tokens:
        args["border"] = "learned"
    try:
        video: Any = create_model(architecture, **args)
    except TypeError as error:
        raise ValueError(
            f"{architecture!r} is no video model of these arguments: {error}"
        ) from error
    times = video.patch_embed.grid_size[0]
    state = dict(model.state_dict())
    state[PATCHES] = state[PATCHES][:, :, None].expand(-1, -1, tubelet_size, -1, -1) / tubelet_size
    if model.pos_embed is not None:
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        state["pos_embed"] = _repeated(state["pos_embed"], prefix, times)
    for i, block in enumerate(model.blocks):
        attn: Any = block.attn
        name, less = f"blocks.{i}.attn", log(times) / attn.rpe.gain
        if model.num_prefix_tokens:
            border = attn.border or Border(model.num_prefix_tokens, attn.num_heads)
            state |= {f"{name}.border.{key}": value for key, value in border.state_dict().items()}
            state[f"{name}.border.row"] = state[f"{name}.border.row"] - less
        if isinstance(attn.rpe, OffsetRPE):
            table = state[f"{name}.rpe.table"] - less
            state[f"{name}.rpe.table"] = table[:, None].repeat(1, 2 * times - 1, 1, 1)
        else:
            state[f"{name}.rpe.weight"] = state[f"{name}.rpe.weight"] - less
            rate = state[f"{name}.rpe.rate"]
            state[f"{name}.rpe.rate"] = torch.cat([torch.zeros_like(rate[..., :1]), rate], -1)
    try:
        video.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"model_args do not describe the image model: {error}") from error
    video = video.to(model.patch_embed.proj.weight)
    _check_equal(model, video)
    return video.train(model.training)


def _check(model: MaskedViT, model_args: dict[str, Any]) -> None:
    if isinstance(model, (MaskedVideo, TopViT)) or not isinstance(model, MaskedViT):
        raise ValueError(f"cannot inflate {type(model).__name__}; convert gives an image model")
    attn: Any = model.blocks[0].attn
    if not isinstance(attn.rpe, (OffsetRPE, ExponentialRPE)) or attn.rpe.positive != "exp":
        raise ValueError(
            "a still clip can equal its image with rpe 'offset' or 'exponential' of positive 'exp' "
            f"(a distance counts time, too), got {type(attn.rpe).__name__}"
        )
    if model.num_prefix_tokens and model.pool_include_prefix:
        raise ValueError("with pool_include_prefix copies of patches outweigh the prefix tokens")
    if model_args.get("causal_time") and model.num_prefix_tokens:
        raise ValueError(
            "with causal_time patches do not read prefix tokens, as those of the image model do: a "
            "still clip cannot equal its image"
        )


def _check_equal(model: MaskedViT, video: MaskedVideo) -> None:
    """Refuses a video model that does not see a still clip as the image model sees the image."""
    weight, size = model.patch_embed.proj.weight, model.patch_embed.img_size
    if video.patch_embed.img_size != size:
        raise ValueError(
            f"model_args do not describe the image model: it takes images of {size}, and the video "
            f"model frames of {video.patch_embed.img_size}"
        )
    if weight.is_meta:
        return
    image = torch.randn(1, weight.shape[1], *size, generator=torch.Generator().manual_seed(0))
    expected, logits = _outputs(model, image), _outputs(video, image)
    for ours, theirs in zip(logits, expected, strict=True):
        if ours.ndim == 3:  # tokens, not pooled: the first copy of each
            ours = ours[:, : theirs.shape[1]]
        error, scale = (ours - theirs).abs().max(), theirs.abs().max()
        if not error <= _ROUND_OFF * scale:
            raise ValueError(
                "model_args do not describe the image model: on a still image the outputs differ "
                f"by {error:.1e}, and the largest is {scale:.1e}; repeat all arguments that the "
                "image model was made with, such as feature_map, unit_norm and rpe_gain"
            )


@torch.no_grad()
def _outputs(model: MaskedViT, image: Tensor) -> tuple[Tensor, Tensor]:
    """The input of the classifier and the logits, in eval mode and in float32 or better."""
    weight = model.patch_embed.proj.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    if weight.dtype != dtype:
        model = deepcopy(model).to(dtype)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        features = model.forward_features(image.to(weight.device, dtype))
        return model.forward_head(features, pre_logits=True), model.forward_head(features)
    finally:
        for module, training in modes.items():
            module.training = training


def _repeated(positions: Tensor, prefix: int, times: int) -> Tensor:
    first, rest = positions[:, :prefix], positions[:, prefix:]
    return torch.cat([first, rest.repeat(1, times, 1)], 1)
