"""Videos before they are in shards: files, and folders of frames, in the layout of ImageNet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .encode import frame_archive
from .errors import BadData
from .layout import IMAGE_ENDINGS
from .origins import check_classes, class_folders, csv_file, find_splits
from .sources import Item, Source, digest, file_size
from .video import VIDEO_ENDINGS


@dataclass(frozen=True)
class VideoFiles:
    """Video files, with their bytes as they are, and folders of frames, as zip archives."""

    root: Path
    names: Sequence[str]
    labels: Sequence[int]
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def item(self, i: int) -> Item:
        path, label = self.root / self.names[i], self.labels[i]
        if not path.is_dir():
            return Item(path.stem, label, _ending(path.name), path.read_bytes())
        files = frame_files(path)
        if not files:
            raise BadData(
                f"the folder {self.names[i]!r} has no frames ({', '.join(IMAGE_ENDINGS)})"
            )
        frames = ((_ending(file.name), file.read_bytes()) for file in files)
        return Item(path.name, label, "zip", frame_archive(frames))

    def fingerprint(self) -> str:
        """Of names, labels and sizes: a file that was replaced by another is noticed."""
        return digest(
            (name, label, self._sizes(self.root / name))
            for name, label in zip(self.names, self.labels, strict=True)
        )

    def _sizes(self, path: Path) -> list[int]:
        return list(map(file_size, frame_files(path) if path.is_dir() else [path]))


def video_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """class/video.mp4 or class/video/frame.jpg, or the same below train/, val/, ..."""
    parts = find_splits(folder, split)
    classes, numbers = class_folders(next(iter(parts.values())))
    splits: dict[str, Source] = {}
    for name, part in parts.items():
        check_classes(part, classes)
        found = [
            (str(path.relative_to(part)), numbers[c]) for c in classes for path in _videos(part / c)
        ]
        splits[name] = VideoFiles(
            part, [n for n, _ in found], [label for _, label in found], classes
        )
    return splits


def video_table(path: str | Path, root: str | Path | None = None) -> dict[str, Source]:
    """A CSV file as for images; a path without an ending is a folder of frames."""
    return csv_file(path, root, (*VIDEO_ENDINGS, ""), VideoFiles)


def frame_files(folder: Path) -> list[Path]:
    """The images in a folder; `frame_10` comes after `frame_9`."""
    found = [
        Path(entry.path) for entry in os.scandir(folder) if _ending(entry.name) in IMAGE_ENDINGS
    ]
    return sorted(found, key=_natural)


def _videos(folder: Path) -> Iterator[Path]:
    """All videos of a class, in the order of their names, folders within folders too."""
    if not folder.is_dir():
        return
    for place, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        kinds = {_ending(name) for name in files}
        if kinds & set(IMAGE_ENDINGS):
            if Path(place) == folder:
                raise ValueError(
                    f"{place!r} has images in it, where videos or folders of frames, one for each "
                    "video, belong"
                )
            yield Path(place)
        yield from (Path(place, name) for name in sorted(files) if _ending(name) in VIDEO_ENDINGS)


def _ending(name: str) -> str:
    ending = os.path.splitext(name)[1].lower().lstrip(".")
    return "jpg" if ending == "jpeg" else ending


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers by their value, between texts by the alphabet."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]
