"""A small recipe and shards of clips for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.data.samples import write_shard
from tests.data.video_samples import clip_sample, video

SIDES = {"count": 7, "height": 9, "width": 14}


VIDEO: dict[str, Any] = {
    "model": "performer_rpe3d_tiny_patch16_224",
    "model_kwargs": {
        **{"patch_size": 4, "tubelet_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2},
        **{"class_token": False, "global_pool": "avg", "rpe_init": "decay"},
    },
    **{"img_size": 8, "num_frames": 4, "val_clips": 2, "val_crops": 3, "crop_pct": 1.0},
    **{"mixup": 0.4, "cutmix": 1.0, "aa": "rand-m5-n2", "reprob": 0.3, "drop_path": 0.1},
}


def make_videos(folder: Path, count: int = 40) -> str:
    """Two splits; of the second one every video is three clips, in shards of different lengths."""
    write_shard(folder / "x-train-000.tar", (clip_sample(i, **SIDES) for i in range(count - 9)))
    files = [clip_sample(50 + i, **SIDES) for i in range(9)]
    for each in files[::2]:  # video files among folders of frames
        each["mp4"] = video(9, "mp4", height=10, width=14)
        del each["zip"]
    write_shard(folder / "x-train-001.tar", files)
    clips = [
        clip_sample(100 + 3 * i + c, i % 10, f"v{i:03d}-clip{c:03d}", **SIDES)
        for i in range(7)
        for c in range(3)
    ]
    order = np.random.default_rng(0).permutation(len(clips))
    for number, part in enumerate(np.array_split(order, 4)):
        write_shard(folder / f"x-val-{number:03d}.tar", (clips[i] for i in part))
    return str(folder)
