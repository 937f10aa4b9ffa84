"""Videos before they are in shards: files, and folders of frames, in the layout of ImageNet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..shards.layout import IMAGE_ENDINGS
from ..videos.containers import VIDEO_ENDINGS, ending_of
from .datasets import check_classes, class_folders, csv_file, files_of, find_splits
from .sources import Source


def video_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """class/video.mp4 or class/video/frame.jpg, or the same below train/, val/, ..."""
    parts = find_splits(folder, split)
    classes, numbers = class_folders(next(iter(parts.values())))
    splits: dict[str, Source] = {}
    for name, part in parts.items():
        check_classes(part, classes)
        others: list[Path] = []
        found = [
            (path, numbers[label]) for label in classes for path in _videos(part / label, others)
        ]
        what = f"videos ({', '.join(VIDEO_ENDINGS)}, or folders of frames)"
        splits[name] = files_of(part, found, classes, others, what)
    return splits


def video_table(path: str | Path, root: str | Path | None = None) -> dict[str, Source]:
    """A CSV file as for images; a path without an ending is a folder of frames."""
    return csv_file(path, root, (*VIDEO_ENDINGS, ""))


def _videos(folder: Path, others: list[Path]) -> Iterator[Path]:
    """All videos of a class, in the order of their names, folders within folders too.

    Files that are neither videos nor frames are added to `others`.
    """
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        # a link can lead back to where it is
        folders[:] = sorted(n for n in folders if os.path.realpath(Path(place, n)) not in seen)
        seen.update(os.path.realpath(Path(place, name)) for name in folders)
        if {ending_of(name) for name in files} & set(IMAGE_ENDINGS):
            if Path(place) == folder:
                raise ValueError(
                    f"{place!r} has images in it, where videos or folders of frames, one for each "
                    "video, belong"
                )
            yield Path(place)
        for name in sorted(files):
            if ending_of(name) in VIDEO_ENDINGS:
                yield Path(place, name)
            elif ending_of(name) not in IMAGE_ENDINGS:
                others.append(Path(place, name))
