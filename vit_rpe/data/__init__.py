"""Shards on disk to batches. Imports nothing of ours."""

from .bad import BadSamples
from .clip_transform import ClipTransform
from .clips import ClipSampler, videos_of
from .decode import ImageDecoder
from .errors import BadData, BadSample, FolderBusy, ShardError
from .index import Shards, open_shards
from .loader import Loader
from .lock import FolderLock
from .maker import make_shards
from .mixing import Mixing
from .plan import PADDING, Entries, Plan
from .preparing import Recipe, VideoRecipe
from .reader import IGNORED, Batch, BatchReader, Sample, SampleReader, Transform
from .transforms import ImageTransform, Resolution
from .verify import verify
from .video import VIDEO_ENDINGS, VideoDecoder

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
