"""Vision Transformers whose linear attention knows where tokens are, registered with timm."""

__version__ = "0.1.0"

from . import models as models
