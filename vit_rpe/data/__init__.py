"""Shards on disk to batches. Imports nothing of ours."""

from .bad import BadSamples
from .decode import ImageDecoder
from .errors import BadData, BadSample, ShardError
from .index import Shards, open_shards
from .loader import Loader
from .maker import Recipe, make_shards
from .mixing import Mixing
from .plan import PADDING, Entries, Plan
from .reader import IGNORED, Batch, BatchReader, Sample, SampleReader, Transform
from .transforms import ImageTransform, Resolution
from .verify import verify

__all__ = [
    "IGNORED",
    "PADDING",
    "BadData",
    "BadSample",
    "BadSamples",
    "Batch",
    "BatchReader",
    "Entries",
    "ImageDecoder",
    "ImageTransform",
    "Loader",
    "Mixing",
    "Plan",
    "Recipe",
    "Resolution",
    "Sample",
    "SampleReader",
    "ShardError",
    "Shards",
    "Transform",
    "make_shards",
    "open_shards",
    "verify",
]
