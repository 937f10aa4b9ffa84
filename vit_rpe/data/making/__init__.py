"""Making shards: sources of samples, their preparation, and the writing of shards.

The names below are public.
"""

from .datasets import digits, torchvision_dataset
from .encode import folder_archive, frame_archive, h264
from .folders import endings_in_words, image_folder, video_folder
from .held_out import hold_out
from .idx import idx_folder, read_idx
from .moving import MovingDigits, MovingPairs, moving_digits, moving_pairs
from .preparation import ImagePreparation, Part, Preparation, VideoPreparation
from .sources import Arrays, Clips, Dataset, Files, Item, Source
from .tables import csv_file, video_table
from .write_shards import make_shards

__all__ = [
    "Arrays",
    "Clips",
    "Dataset",
    "Files",
    "ImagePreparation",
    "Item",
    "MovingDigits",
    "MovingPairs",
    "Part",
    "Preparation",
    "Source",
    "VideoPreparation",
    "csv_file",
    "digits",
    "endings_in_words",
    "folder_archive",
    "frame_archive",
    "h264",
    "hold_out",
    "idx_folder",
    "image_folder",
    "make_shards",
    "moving_digits",
    "moving_pairs",
    "read_idx",
    "torchvision_dataset",
    "video_folder",
    "video_table",
]
