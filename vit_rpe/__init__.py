"""Vision Transformers whose linear attention knows where tokens are."""

__version__ = "0.1.0"
