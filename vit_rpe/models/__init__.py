"""timm's dialect: the models, and what turns a softmax ViT into one of them."""

from .masked_vit import MaskedViT, PerformerViT, SoftmaxRPEViT, TopViT
from .performer_rpe import default_cfgs

__all__ = ["MaskedViT", "PerformerViT", "SoftmaxRPEViT", "TopViT", "default_cfgs"]
