"""Shards to batches: who reads what, how it is decoded, and what a model is given.

Public are the names below, vit_rpe.data.making (to make shards) and vit_rpe.data.shards (their
format); all other modules are private. Imports nothing of ours but what is below everything.
"""

from vit_rpe.extras import require_extra

require_extra("train", "vit_rpe.data", "webdataset", "fsspec", "filelock", "PIL")

from .augment.mixing import Mixing
from .batches import IGNORED, Batch, Batches, DeviceStage, bad_if_too_large
from .errors import BadData, BadSample, FolderBusy, MissingShards, ShardError
from .images.decode import IMAGE_ENDINGS, ImageDecoder
from .images.transform import ImageTransform, Resolution
from .loader import Loader
from .lock import FolderLock
from .making.write_shards import make_shards
from .modality import (
    Images,
    Modality,
    Transform,
    Videos,
    holds_videos,
    modality_of,
    recorded_modality,
    try_decoder,
)
from .parts import split_by_key
from .plan import PADDING, Entries, Plan
from .seeding import Purpose, seed_model, torch_generator
from .shards.bad_samples import DEFAULT_BAD_LIMIT, BadSamples
from .shards.index import Shards, open_shards
from .shards.layout import is_pattern, read_info
from .shards.samples import Sample, SampleReader
from .verification import verify
from .videos.clips import ClipSampler, videos_of
from .videos.containers import VIDEO_BACKENDS, VIDEO_ENDINGS, VideoDecoder, ending_of, is_video
from .videos.transform import CLIP_CROPS, ClipTransform
from .worker import WorkerContext

__all__ = [
    "CLIP_CROPS",
    "DEFAULT_BAD_LIMIT",
    "IGNORED",
    "IMAGE_ENDINGS",
    "PADDING",
    "VIDEO_BACKENDS",
    "VIDEO_ENDINGS",
    "BadData",
    "BadSample",
    "BadSamples",
    "Batch",
    "Batches",
    "ClipSampler",
    "ClipTransform",
    "DeviceStage",
    "Entries",
    "FolderBusy",
    "FolderLock",
    "ImageDecoder",
    "ImageTransform",
    "Images",
    "Loader",
    "MissingShards",
    "Mixing",
    "Modality",
    "Plan",
    "Purpose",
    "Resolution",
    "Sample",
    "SampleReader",
    "ShardError",
    "Shards",
    "Transform",
    "VideoDecoder",
    "Videos",
    "WorkerContext",
    "bad_if_too_large",
    "ending_of",
    "holds_videos",
    "is_pattern",
    "is_video",
    "make_shards",
    "modality_of",
    "open_shards",
    "read_info",
    "recorded_modality",
    "seed_model",
    "split_by_key",
    "torch_generator",
    "try_decoder",
    "verify",
    "videos_of",
]
