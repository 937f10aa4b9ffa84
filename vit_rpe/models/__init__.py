"""timm's dialect: the models, and what turns a softmax ViT into one of them."""

from .conversion import LINEAR_OPTIONS, MASK_OPTIONS, ConversionReport, convert
from .inflation import inflate
from .masked_video import MaskedVideo, PerformerVideo, SoftmaxRPEVideo
from .masked_vit import MaskedViT, PerformerViT, SoftmaxRPEViT, TopViT
from .names import RPES
from .performer_rpe import default_cfgs
from .stream import VideoStream

__all__ = [
    "LINEAR_OPTIONS",
    "MASK_OPTIONS",
    "RPES",
    "ConversionReport",
    "MaskedVideo",
    "MaskedViT",
    "PerformerVideo",
    "PerformerViT",
    "SoftmaxRPEVideo",
    "SoftmaxRPEViT",
    "TopViT",
    "VideoStream",
    "convert",
    "default_cfgs",
    "inflate",
]
