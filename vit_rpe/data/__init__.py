"""Shards on disk to batches. Imports nothing of ours."""

from .augment.mixing import Mixing
from .batches import IGNORED, Batch, BatchReader, Sample, SampleReader, Transform
from .errors import BadData, BadSample, FolderBusy, ShardError
from .images.decode import ImageDecoder
from .images.transform import ImageTransform, Resolution
from .loader import Loader
from .lock import FolderLock
from .making.preparation import Recipe, VideoRecipe
from .making.write_shards import make_shards
from .plan import PADDING, Entries, Plan
from .shards.bad_samples import BadSamples
from .shards.index import Shards, open_shards
from .shards.verification import verify
from .videos.clips import ClipSampler, videos_of
from .videos.containers import VIDEO_ENDINGS, VideoDecoder
from .videos.transform import ClipTransform

__all__ = [
    "IGNORED",
    "PADDING",
    "VIDEO_ENDINGS",
    "BadData",
    "BadSample",
    "BadSamples",
    "Batch",
    "BatchReader",
    "ClipSampler",
    "ClipTransform",
    "Entries",
    "FolderBusy",
    "FolderLock",
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
    "VideoDecoder",
    "VideoRecipe",
    "make_shards",
    "open_shards",
    "verify",
    "videos_of",
]
