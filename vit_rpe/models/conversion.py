"""Pretrained softmax ViTs become Performers: the weights of timm, our attention around them."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import drop as timm_drop
from timm.layers.activations import GELU, GELUTanh, QuickGELU
from timm.layers.attention import Attention
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import GluMlp, Mlp, SwiGLU, SwiGLUPacked
from timm.layers.norm import LayerNorm, LayerNormFp32, RmsNorm, RmsNormFp32
from timm.layers.patch_dropout import PatchDropout
from timm.layers.patch_embed import PatchEmbed
from timm.models import clean_state_dict
from timm.models.vision_transformer import Block, VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as timm_filter
from torch import Tensor, nn

from .checkpoint import checkpoint_filter_fn
from .masked_vit import MaskedViT, resample_positions
from .names import choose
from .performer_rpe import SIZES, default_cfgs

MASK_OPTIONS = ("rpe", "rpe_init", "rpe_gain", "rpe_terms", "rpe_positive", "border")
LINEAR_OPTIONS = ("feature_map", "num_features", "unit_norm", "path")
VIT_OPTIONS = (
    *("img_size", "patch_size", "num_classes", "dynamic_img_size", "dynamic_img_pad"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"),
    "drop_path_rate",
)
"""timm options that may differ from the source; the others are read off its weights."""

# Names that a config file can hold; other layers are passed on as objects.
NORMS: dict[type[nn.Module], str] = {
    LayerNorm: "layernorm",
    LayerNormFp32: "layernormfp32",
    RmsNorm: "rmsnorm",
    RmsNormFp32: "rmsnormfp32",
}
ACTIVATIONS: dict[type[nn.Module], str] = {
    GELU: "gelu",
    GELUTanh: "gelu_tanh",
    QuickGELU: "quick_gelu",
    nn.SiLU: "silu",
    nn.ReLU: "relu",
}
# They act only in training, and start again.
TRAINING_ONLY = (nn.Dropout, timm_drop.DropPath, PatchDropout)
# How images of the source's training looked; it holds for the converted model, too.
DATA_CONFIG = ("mean", "std", "crop_pct", "crop_mode", "interpolation", "license")


@dataclass(frozen=True)
class ConversionReport:
    """The fate of the weights, by their names in the state dicts.

    `timm.create_model(architecture, **kwargs)` makes the same model without the weights.
    """

    source: str
    architecture: str
    kwargs: dict[str, Any]
    taken: tuple[str, ...]
    resampled: tuple[str, ...]
    not_taken: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def unnamed(self) -> dict[str, Any]:
        """The kwargs that no config file can hold: layers without a name in timm."""
        return {name: value for name, value in self.kwargs.items() if not _is_json(value)}

    def __str__(self) -> str:
        kwargs = "".join(f", {name}={value!r}" for name, value in self.kwargs.items())
        return "\n".join(
            [
                f"{self.source} -> {self.architecture}",
                f"taken       {len(self.taken)} tensors",
                f"resampled   {_grouped(self.resampled)}",
                f"not taken   {_grouped(self.not_taken)}",
                f"new         {_grouped(self.new)}",
                f"the model   timm.create_model({self.architecture!r}{kwargs})",
            ]
        )


def convert(
    source: nn.Module | Mapping[str, Tensor] | str | Path,
    *,
    model_name: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    attention: str = "linear",
    **options: Any,
) -> tuple[MaskedViT, ConversionReport]:
    """A timm ViT with its own weights and our attention, and a report of what went where.

    Masks start at one (unless `rpe_init` says otherwise): with `attention="softmax"` the logits
    are those of the source, with `"linear"` those of the Performer without a mask. Random features
    are drawn from torch's global generator. Rates of dropout start at 0 unless given.

    Args:
        source: timm's VisionTransformer; or a state dict, or a .safetensors file of one. Pickles
            are refused.
        model_name: the timm architecture of a state dict, which does not say its heads, norms and
            activations. Classes, channels, patch size and a square image size are read off it.
        model_args: further arguments of that architecture.
        attention: linear (PerformerViT) | softmax (SoftmaxRPEViT).
        options: of our models (`MASK_OPTIONS`, `LINEAR_OPTIONS`) and of timm's (`VIT_OPTIONS`).
    """
    prefix = choose("attention", attention, {"linear": "performer_rpe2d", "softmax": "vit_rpe2d"})
    _check_options(options)
    if isinstance(source, nn.Module):
        if model_name is not None or model_args is not None:
            raise ValueError("model_name and model_args describe a state dict, but a model came")
        vit: Any = source
        unexpected: list[str] = []
        label = (getattr(source, "pretrained_cfg", None) or {}).get("architecture", "a timm ViT")
    else:
        vit, unexpected = _load(source, model_name, dict(model_args or {}))
        file = Path(source).name if isinstance(source, (str, Path)) else "a state dict"
        label = f"{file} ({model_name})"

    options = {"rpe": "offset", "rpe_init": "ones", **options}
    if options["rpe"] == "none" and attention == "linear":
        prefix = "performer"
    architecture, kwargs = _closest(prefix, {**_arguments(vit), **options})
    model: Any = timm.create_model(architecture, **kwargs)
    model.train(vit.training).to(vit.patch_embed.proj.weight)
    _check_same_layers(vit, model)
    taken, resampled, left, new = _copy_weights(vit, model)
    _describe_images(vit, model)
    return model, ConversionReport(
        label, architecture, kwargs, taken, resampled, (*left, *unexpected), new
    )


def _check_options(options: dict[str, Any]) -> None:
    known = (*MASK_OPTIONS, *LINEAR_OPTIONS, *VIT_OPTIONS)
    for name in options:
        if name not in known:
            fixed = name in inspect.signature(VisionTransformer).parameters
            why = "follows from the source" if fixed else "is no option"
            raise ValueError(f"{name} {why}; convert takes {', '.join(known)}")


def _load(
    source: Mapping[str, Tensor] | str | Path, model_name: str | None, model_args: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The timm model of a state dict or file, and the names in it that the model does not have."""
    state: Any = _read(Path(source)) if isinstance(source, (str, Path)) else source
    if model_name is None:
        raise ValueError(
            "a state dict does not say its heads, norms and activations: give model_name, "
            "a timm ViT such as 'vit_base_patch16_224'"
        )
    if not timm.is_model(model_name):
        raise ValueError(f"timm has no model {model_name!r}")
    state = clean_state_dict(state.get("state_dict", state.get("model", state)))
    patches = state.get("patch_embed.proj.weight")
    if patches is not None and patches.ndim == 4:
        head = state.get("head.weight")
        seen = {
            "num_classes": 0 if head is None else head.shape[0],
            "in_chans": patches.shape[1],
            "patch_size": tuple(patches.shape[2:]),
        }
        model_args = {**seen, **model_args}
    try:
        vit: Any = timm.create_model(model_name, **model_args)
    except TypeError as error:
        raise ValueError(f"{model_name} does not take these arguments: {error}") from error
    _check_kind(vit)
    _fit_image_size(vit, state, model_args)
    try:
        missing, unexpected = vit.load_state_dict(timm_filter(state, vit), strict=False)
    except RuntimeError as error:
        raise ValueError(f"these are not the weights of {model_name}: {error}") from error
    if missing:
        raise ValueError(f"these are not the weights of {model_name}: no {_grouped(missing)}")
    return vit, unexpected


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        raise ValueError(
            f"need a .safetensors file, got {path.name}: a pickle may run any code. If you trust "
            "it: safetensors.torch.save_file(torch.load(file, weights_only=True), 'x.safetensors')"
        )
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path.name} is no safetensors file: {error}") from error


def _fit_image_size(vit: Any, state: dict[str, Tensor], model_args: dict[str, Any]) -> None:
    """The square image size that a state dict was trained on; other sizes must be given."""
    positions = state.get("pos_embed")
    if positions is None or vit.pos_embed is None or positions.shape[1] == vit.pos_embed.shape[1]:
        return
    patches = positions.shape[1] - vit.pos_embed.shape[1] + vit.patch_embed.num_patches
    side = isqrt(max(patches, 0))
    if "img_size" in model_args or side == 0 or side**2 != patches:
        raise ValueError(
            f"{patches} positions do not fit images of {vit.patch_embed.img_size}; "
            "give the size of the weights, model_args={'img_size': (height, width)}"
        )
    height, width = vit.patch_embed.patch_size
    vit.set_input_size(img_size=(side * height, side * width))


def _check_kind(vit: nn.Module) -> None:
    """timm's own classes, not their relatives: what those compute, our models do not."""
    _require("the model", vit, VisionTransformer)
    _require("patch_embed", vit.patch_embed, PatchEmbed)
    blocks: Any = vit.blocks
    if len(blocks) == 0:
        raise ValueError("cannot convert a model without blocks")
    for i, block in enumerate(blocks):
        _require(f"blocks.{i}", block, Block)
        _require(f"blocks.{i}.attn", block.attn, Attention)
        _require(f"blocks.{i}.mlp", block.mlp, Mlp, SwiGLU, GluMlp)


def _require(name: str, module: Any, *kinds: type[nn.Module]) -> None:
    if type(module) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"cannot convert {name}: need timm's {wanted}, got {_kind(module)}")


def _arguments(vit: Any) -> dict[str, Any]:
    """The arguments of VisionTransformer that make a model of the same layers."""
    _check_kind(vit)
    block = vit.blocks[0]
    attn, mlp, patches = block.attn, block.mlp, vit.patch_embed
    arguments = {
        "img_size": patches.img_size,
        "patch_size": patches.patch_size,
        "in_chans": patches.proj.in_channels,
        "num_classes": vit.num_classes,
        "global_pool": vit.global_pool,
        "embed_dim": vit.embed_dim,
        "depth": len(vit.blocks),
        "num_heads": attn.num_heads,
        "mlp_ratio": _mlp_ratio(mlp, vit.embed_dim),
        "qkv_bias": attn.qkv.bias is not None,
        "qk_norm": _is_there(attn.q_norm),
        "scale_attn_norm": _is_there(attn.norm),
        "scale_mlp_norm": _is_there(mlp.norm),
        "proj_bias": attn.proj.bias is not None,
        "init_values": block.ls1.init_values if isinstance(block.ls1, LayerScale) else None,
        "class_token": vit.cls_token is not None,
        "pos_embed": "none" if vit.pos_embed is None else "learn",
        "no_embed_class": vit.no_embed_class,
        "reg_tokens": vit.num_reg_tokens,
        "pre_norm": _is_there(vit.norm_pre),
        "final_norm": _is_there(vit.norm) or _is_there(vit.fc_norm),
        "fc_norm": _is_there(vit.fc_norm),
        "pool_include_prefix": vit.pool_include_prefix,
        "dynamic_img_size": vit.dynamic_img_size,
        "dynamic_img_pad": patches.dynamic_img_pad,
        "norm_layer": _norm(block.norm1),
        "embed_norm_layer": _norm(patches.norm) if _is_there(patches.norm) else None,
        "act_layer": ACTIVATIONS.get(type(mlp.act), type(mlp.act)),
    }
    if not isinstance(mlp, Mlp):
        arguments["mlp_layer"] = (
            SwiGLU if isinstance(mlp, SwiGLU) else GluMlp if mlp.gate_last else SwiGLUPacked
        )
    return arguments


def _mlp_ratio(mlp: Any, dim: int) -> float:
    hidden = (mlp.fc1_g if isinstance(mlp, SwiGLU) else mlp.fc1).out_features
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim  # timm rounds down


def _norm(norm: Any) -> Any:
    """The name of a norm's class, or what makes one if its eps is not the usual one."""
    kind = type(norm)
    usual = inspect.signature(kind).parameters["eps"].default
    return NORMS.get(kind, kind) if norm.eps == usual else partial(kind, eps=norm.eps)


def _closest(prefix: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The registered name nearest in width, and the arguments that it does not imply."""
    names = {f"{prefix}_{size}_patch16_224": shape for size, shape in SIZES.items()}
    names = {name: shape for name, shape in names.items() if name in default_cfgs}
    name = min(names, key=lambda n: abs(names[n]["embed_dim"] - arguments["embed_dim"]))
    signature = inspect.signature(VisionTransformer).parameters
    implied: dict[str, Any] = {key: value.default for key, value in signature.items()}
    implied |= {**names[name], "act_layer": nn.GELU, "norm_layer": NORMS[LayerNorm]}
    implied["fc_norm"] = arguments["global_pool"] in ("avg", "avgmax", "max")
    for key in ("img_size", "patch_size"):
        arguments[key] = _as_side(arguments[key])
    return name, {
        key: value
        for key, value in arguments.items()
        if not (key in implied and value == implied[key])
    }


def _as_side(size: Any) -> int | tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return sides[0] if sides[0] == sides[1] else sides


def _check_same_layers(vit: Any, model: MaskedViT) -> None:
    """Layer by layer outside of attention: a last guard against what no argument has said."""
    ours = dict(model.named_modules())
    for name, theirs in vit.named_modules():
        mine = ours.get(name)
        if isinstance(theirs, TRAINING_ONLY) or isinstance(mine, TRAINING_ONLY):
            continue
        if name == "" or (isinstance(theirs, Attention) and isinstance(mine, Attention)):
            continue
        if name == "head" and isinstance(theirs, (nn.Linear, nn.Identity)):
            continue  # another number of classes
        same = type(mine) is type(theirs) and _settings(mine) == _settings(theirs)
        if not same:
            raise ValueError(f"cannot convert {name}: it is {_kind(theirs)}, we make {_kind(mine)}")


def _settings(module: Any) -> tuple[Any, ...]:
    shown = "" if isinstance(module, nn.Conv2d) else module.extra_repr()  # patches may be resized
    return shown, getattr(module, "eps", None)


def _copy_weights(vit: Any, model: Any) -> tuple[tuple[str, ...], ...]:
    """Names that are taken, resampled, left in the source, and new in the model."""
    source, own = vit.state_dict(), model.state_dict()
    fitted = dict(source)
    old, new = vit.patch_embed.grid_size, model.patch_embed.grid_size
    if vit.pos_embed is not None and old != new:
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        fitted["pos_embed"] = resample_positions(fitted["pos_embed"], new, old, prefix)
    if vit.num_classes != model.num_classes:
        fitted = {name: value for name, value in fitted.items() if not name.startswith("head.")}
    fitted = checkpoint_filter_fn(fitted, model)
    model.load_state_dict(fitted, strict=False)
    resampled = tuple(name for name in fitted if fitted[name] is not source[name])
    return (
        tuple(name for name in fitted if name not in resampled),
        resampled,
        tuple(name for name in source if name not in fitted),
        tuple(name for name in own if name not in fitted),
    )


def _describe_images(vit: Any, model: Any) -> None:
    """The `pretrained_cfg` that loading looks at: the source's data, the model's sizes."""
    source = getattr(vit, "pretrained_cfg", None) or {}
    channels = model.patch_embed.proj.in_channels
    model.pretrained_cfg |= {key: source[key] for key in DATA_CONFIG if source.get(key) is not None}
    model.pretrained_cfg |= {
        "input_size": (channels, *model.patch_embed.img_size),
        "num_classes": model.num_classes,
    }
    if channels != 3:
        # timm would take the weights for those of 3 channels, and drop what it cannot adapt
        model.pretrained_cfg["first_conv"] = None
    model.default_cfg = model.pretrained_cfg


def _is_there(module: nn.Module) -> bool:
    return not isinstance(module, nn.Identity)


def _kind(module: Any) -> str:
    if module is None:
        return "nothing"
    eps = getattr(module, "eps", None)
    shown = module.extra_repr() if not list(module.children()) else ""
    if eps is not None and "eps" not in shown:
        shown = f"eps={eps}"
    return f"{type(module).__name__}({shown})" if shown else type(module).__name__


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _grouped(names: Iterable[str]) -> str:
    """Join names that differ only in the block: `blocks.*.attn.rpe.table (12)`."""
    counts = Counter(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in names)
    return ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counts.items()) or "nothing"
