"""The models that `import vit_rpe` registers with timm."""

from __future__ import annotations

from typing import Any, TypeVar

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from .checkpoint import checkpoint_filter_fn
from .masked_video import PerformerVideo, SoftmaxRPEVideo
from .masked_vit import MaskedViT, PerformerViT, SoftmaxRPEViT, TopViT

Model = TypeVar("Model", bound=MaskedViT)

SIZES = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_INCEPTION_MEAN,
        "std": IMAGENET_INCEPTION_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "performer_rpe2d": _cfg(),
        "performer_rpe2d_tiny_patch16_224": _cfg(),
        "performer_rpe2d_small_patch16_224": _cfg(),
        "performer_rpe2d_base_patch16_224": _cfg(),
        "performer_rpe2d_large_patch16_224": _cfg(),
        "performer_tiny_patch16_224": _cfg(),
        "performer_small_patch16_224": _cfg(),
        "performer_base_patch16_224": _cfg(),
        "vit_rpe2d_tiny_patch16_224": _cfg(),
        "vit_rpe2d_small_patch16_224": _cfg(),
        "vit_rpe2d_base_patch16_224": _cfg(),
        "topvit_base_patch16_224": _cfg(),
        "performer_rpe3d": _cfg(),
        "performer_rpe3d_tiny_patch16_224": _cfg(),
        "performer_rpe3d_small_patch16_224": _cfg(),
        "performer_rpe3d_base_patch16_224": _cfg(),
        "performer3d_tiny_patch16_224": _cfg(),
        "performer3d_small_patch16_224": _cfg(),
        "performer3d_base_patch16_224": _cfg(),
        "vit_rpe3d_tiny_patch16_224": _cfg(),
        "vit_rpe3d_small_patch16_224": _cfg(),
        "vit_rpe3d_base_patch16_224": _cfg(),
    }
)


def _create(
    kind: type[Model], variant: str, size: str, pretrained: bool, kwargs: dict[str, Any]
) -> Model:
    out_indices = kwargs.pop("out_indices", 3)
    return build_model_with_cfg(
        kind,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
        **{"patch_size": 16, **SIZES[size], **kwargs},
    )


@register_model
def performer_rpe2d(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """The paper's image model: ViT-B/16, ReLU kernel, a block-Toeplitz mask in each head."""
    return _create(PerformerViT, "performer_rpe2d", "base", pretrained, kwargs)


@register_model
def performer_rpe2d_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A tiny Performer with a block-Toeplitz mask."""
    return _create(PerformerViT, "performer_rpe2d_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def performer_rpe2d_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A small Performer with a block-Toeplitz mask."""
    return _create(PerformerViT, "performer_rpe2d_small_patch16_224", "small", pretrained, kwargs)


@register_model
def performer_rpe2d_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A base Performer with a block-Toeplitz mask: `performer_rpe2d` by its full name."""
    return _create(PerformerViT, "performer_rpe2d_base_patch16_224", "base", pretrained, kwargs)


@register_model
def performer_rpe2d_large_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A large Performer with a block-Toeplitz mask."""
    return _create(PerformerViT, "performer_rpe2d_large_patch16_224", "large", pretrained, kwargs)


@register_model
def performer_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A tiny Performer without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerViT, "performer_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def performer_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A small Performer without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerViT, "performer_small_patch16_224", "small", pretrained, kwargs)


@register_model
def performer_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerViT:
    """A base Performer without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerViT, "performer_base_patch16_224", "base", pretrained, kwargs)


@register_model
def vit_rpe2d_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEViT:
    """A tiny softmax ViT with the mask's logarithm as bias."""
    return _create(SoftmaxRPEViT, "vit_rpe2d_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def vit_rpe2d_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEViT:
    """A small softmax ViT with the mask's logarithm as bias."""
    return _create(SoftmaxRPEViT, "vit_rpe2d_small_patch16_224", "small", pretrained, kwargs)


@register_model
def vit_rpe2d_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEViT:
    """A base softmax ViT with the mask's logarithm as bias."""
    return _create(SoftmaxRPEViT, "vit_rpe2d_base_patch16_224", "base", pretrained, kwargs)


@register_model
def topvit_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> TopViT:
    """The authors' TopViT at base size: its forward pass to the letter."""
    return _create(TopViT, "topvit_base_patch16_224", "base", pretrained, kwargs)


@register_model
def performer_rpe3d(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """The paper's proposal for video at base size: a 3-level block-Toeplitz mask over tubelets."""
    return _create(PerformerVideo, "performer_rpe3d", "base", pretrained, kwargs)


@register_model
def performer_rpe3d_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A tiny Performer for clips with a 3-level block-Toeplitz mask."""
    return _create(PerformerVideo, "performer_rpe3d_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def performer_rpe3d_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A small Performer for clips with a 3-level block-Toeplitz mask."""
    return _create(PerformerVideo, "performer_rpe3d_small_patch16_224", "small", pretrained, kwargs)


@register_model
def performer_rpe3d_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A base Performer for clips with a 3-level block-Toeplitz mask."""
    return _create(PerformerVideo, "performer_rpe3d_base_patch16_224", "base", pretrained, kwargs)


@register_model
def performer3d_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A tiny Performer for clips without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerVideo, "performer3d_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def performer3d_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A small Performer for clips without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerVideo, "performer3d_small_patch16_224", "small", pretrained, kwargs)


@register_model
def performer3d_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> PerformerVideo:
    """A base Performer for clips without a mask."""
    kwargs.setdefault("rpe", "none")
    return _create(PerformerVideo, "performer3d_base_patch16_224", "base", pretrained, kwargs)


@register_model
def vit_rpe3d_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEVideo:
    """A tiny softmax ViT for clips with the mask's logarithm as bias."""
    return _create(SoftmaxRPEVideo, "vit_rpe3d_tiny_patch16_224", "tiny", pretrained, kwargs)


@register_model
def vit_rpe3d_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEVideo:
    """A small softmax ViT for clips with the mask's logarithm as bias."""
    return _create(SoftmaxRPEVideo, "vit_rpe3d_small_patch16_224", "small", pretrained, kwargs)


@register_model
def vit_rpe3d_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> SoftmaxRPEVideo:
    """A base softmax ViT for clips with the mask's logarithm as bias."""
    return _create(SoftmaxRPEVideo, "vit_rpe3d_base_patch16_224", "base", pretrained, kwargs)
