"""State dicts of one resolution for a model of another."""

from __future__ import annotations

from math import isqrt, prod

from timm.models.vision_transformer import checkpoint_filter_fn as timm_filter
from torch import Tensor

from vit_rpe.rpe import DistanceRPE, OffsetRPE
from vit_rpe.rpe.resize import resample, resample_offsets

from .masked_vit import Grid, MaskedViT, resample_positions


def checkpoint_filter_fn(state: dict[str, Tensor], model: MaskedViT) -> dict[str, Tensor]:
    """Resamples tables, absolute positions and patches to the model's size.

    Rates of exponential masks mean the same on every grid. What fits already is left alone.
    """
    state = dict(state.get("state_dict", state.get("model", state)))  # pyright: ignore
    old = table_grid(state)
    if model.pos_embed is not None and "pos_embed" in state:
        state["pos_embed"] = _positions(state["pos_embed"], old, model)
    for name, module in model.named_modules():
        key = f"{name}.table"
        if isinstance(module, OffsetRPE) and key in state and old is not None:
            state[key] = resample_offsets(state[key], old, module.grid)
        elif isinstance(module, DistanceRPE) and key in state:
            state[key] = resample(state[key], module.table.shape[-1])
    return timm_filter(state, model)  # pyright: ignore


def _positions(positions: Tensor, old: Grid | None, model: MaskedViT) -> Tensor:
    new = model.patch_embed.grid_size
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    tokens = positions.shape[1] - prefix
    if old == new or (old is None and tokens == prod(new)):
        return positions
    if old is None:
        old = (isqrt(tokens), isqrt(tokens))
    if prod(old) != tokens:
        raise ValueError(
            f"pos_embed holds {tokens} patches, and the state dict does not tell on which grid; "
            "load it into a model of its own size, then call set_input_size"
        )
    return resample_positions(positions, new, old, prefix)


def table_grid(state: dict[str, Tensor]) -> Grid | None:
    """The grid that a state dict was trained on, read off its tables of offsets, if any."""
    for name, value in state.items():
        if name.endswith(".attn.rpe.table") and value.ndim == 3:
            return (value.shape[1] + 1) // 2, (value.shape[2] + 1) // 2
    return None
