"""State dicts of one resolution for a model of another."""

from __future__ import annotations

import warnings
from math import isqrt, prod
from typing import Any

from timm.models._manipulate import adapt_input_conv
from timm.models.vision_transformer import checkpoint_filter_fn as timm_filter
from torch import Tensor

from vit_rpe.rpe import Grid, GridRPE

from .masked_video import MaskedVideo
from .masked_vit import MaskedViT, resample_positions
from .tubelets import resized_tubelets

PATCHES = "patch_embed.proj.weight"


def checkpoint_filter_fn(state: dict[str, Tensor], model: MaskedViT) -> dict[str, Tensor]:
    """Resample tables, absolute positions and patches to the model's size.

    Rates of exponential masks mean the same on every grid. What fits already stays as it is.
    """
    state = dict(state.get("state_dict", state.get("model", state)))  # pyright: ignore
    old = table_grid(state)
    if model.pos_embed is not None and "pos_embed" in state:
        _check_prefix(state, model)
        state["pos_embed"] = _positions(state["pos_embed"], old, model)
    for name, module in model.named_modules():
        if isinstance(module, GridRPE):
            keys = [key for key, _ in module.named_parameters(recurse=False)]
            saved = {key: state[f"{name}.{key}"] for key in keys if f"{name}.{key}" in state}
            resampled = module.resample_state(saved)
            state |= {f"{name}.{key}": value for key, value in resampled.items()}
    if isinstance(model, MaskedVideo):
        # timm's filter and its way to other channels know only images
        patches = {PATCHES: _tubelets(state.pop(PATCHES), model)} if PATCHES in state else {}
        return {**timm_filter(state, model), **patches}  # pyright: ignore
    return timm_filter(state, model)  # pyright: ignore


def _check_prefix(state: dict[str, Tensor], model: MaskedViT) -> None:
    """Positions hold prefix tokens and patches in a row: who has which must agree."""
    for name, words in (("cls_token", "a class token"), ("reg_token", "register tokens")):
        if name in state and getattr(model, name) is None:
            raise ValueError(f"the state dict has {words}, the model has none")
        if name not in state and getattr(model, name) is not None:
            raise ValueError(f"the model has {words}, the state dict has none")


def _positions(positions: Tensor, old: Grid | None, model: MaskedViT) -> Tensor:
    new = model.patch_embed.grid_size
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    tokens = positions.shape[1] - prefix
    if old is None and tokens == prod(new):
        if len(set(new)) > 1:
            warnings.warn(
                f"the state dict does not tell on which grid its positions were learned; they are "
                f"taken as those of a {new} grid",
                stacklevel=2,
            )
        return positions
    if old == new:
        return positions
    if old is None and len(new) == 2:
        old = (isqrt(tokens), isqrt(tokens))
    if old is None or prod(old) != tokens or len(old) != len(new):
        raise ValueError(
            f"pos_embed holds {tokens} patches, and the state dict does not tell on which grid; "
            "load it into a model of its own size, then call set_input_size"
        )
    return resample_positions(positions, new, old, prefix)


def _tubelets(weight: Tensor, model: MaskedVideo) -> Tensor:
    """The patch embedding for the model's patch size and channels."""
    own = model.patch_embed.proj.weight
    if weight.ndim != 5 or weight.shape[2] != own.shape[2]:
        raise ValueError(
            f"{PATCHES} has shape {tuple(weight.shape)}, the model's has {tuple(own.shape)}: "
            "tubelets of another length do not fit, and an image model is inflated first"
        )
    channels = own.shape[1]
    if channels != 3:
        cfg: Any = model.pretrained_cfg
        cfg["first_conv"] = None  # timm would drop the weights of a Conv3d
    if weight.shape[1] != channels:
        frames = weight.movedim(2, 1)
        adapted = adapt_input_conv(channels, frames.flatten(0, 1))
        weight = adapted.unflatten(0, frames.shape[:2]).movedim(1, 2)
    return resized_tubelets(weight, model.patch_embed.patch_size)


def table_grid(state: dict[str, Tensor]) -> Grid | None:
    """The grid that a state dict was trained on, read off its tables of offsets, if any."""
    for name, value in state.items():
        if name.endswith(".attn.rpe.table") and value.ndim >= 3:
            return _sides(value)
        if name.endswith(".attn.rpe.space.table"):
            return _sides(state[name.replace(".space.", ".time.")]) + _sides(value)
    return None


def _sides(table: Tensor) -> Grid:
    return tuple((side + 1) // 2 for side in table.shape[1:])
