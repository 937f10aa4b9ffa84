"""Sources in folders of files, one folder for each class, as ImageNet has them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torchvision.datasets.folder import find_classes, make_dataset

from vit_rpe.messages import shown

from ..images.decode import IMAGE_ENDINGS
from ..videos.containers import VIDEO_ENDINGS, ending_of
from .sources import Files, Source

SPLITS = ("train", "val", "validation", "test")


def image_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """Find class/image.jpg, or the same below train/, val/, ...: ImageNet's layout as it is.

    Classes are the folders of the training split in the order of their names, as in torchvision.
    """
    parts = find_splits(folder, split)
    classes, numbers = class_folders(next(iter(parts.values())))
    return {name: _images_of(part, classes, numbers) for name, part in parts.items()}


def find_splits(folder: str | Path, split: str) -> dict[str, Path]:
    """Find the folders train/, val/, ... in a folder, or take the folder itself as one split."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"no folder {str(root)!r}")
    found = [name for name in SPLITS if (root / name).is_dir()]
    return {name: root / name for name in found} or {split: root}


def class_folders(folder: Path) -> tuple[list[str], dict[str, int]]:
    """List the classes of a split, and number them in the order of their names."""
    try:
        return find_classes(str(folder))
    except FileNotFoundError:
        raise ValueError(f"{str(folder)!r} has no folders, one for each class, in it") from None


def check_classes(folder: Path, classes: Sequence[str]) -> None:
    """Raise ValueError if a split has a class that the training split has not."""
    unknown = sorted(set(class_folders(folder)[0]) - set(classes))
    if unknown:
        raise ValueError(f"{str(folder)!r} has the class {unknown[0]!r}, which train has not")


def _images_of(folder: Path, classes: list[str], numbers: dict[str, int]) -> Files:
    check_classes(folder, classes)
    endings = tuple(f".{ending}" for ending in IMAGE_ENDINGS)
    others: list[str] = []

    def is_image(path: str) -> bool:
        found = path.lower().endswith(endings)
        if not found:
            others.append(path)
        return found

    found = make_dataset(str(folder), numbers, is_valid_file=is_image, allow_empty=True)
    paths = [(Path(path), label) for path, label in found]
    return files_of(
        folder, paths, classes, map(Path, others), f"images ({', '.join(IMAGE_ENDINGS)})"
    )


def files_of(
    folder: Path,
    found: Sequence[tuple[Path, int]],
    classes: Sequence[str],
    others: Iterable[Path],
    what: str,
) -> Files:
    """Make the source of a split, with a count of the `others` in it; no class may be empty."""
    passed = {label: Counter[str]() for label in classes}
    for path in others:
        passed[path.relative_to(folder).parts[0]][path.suffix.lower() or "no ending"] += 1
    for empty in sorted(set(class_folders(folder)[0]) - {classes[label] for _, label in found}):
        raise ValueError(f"{str(folder / empty)!r} has no {what} in it{_but(passed[empty])}")
    loose = (Path(each.name) for each in os.scandir(folder) if each.is_file())
    total = sum(passed.values(), Counter(path.suffix.lower() or "no ending" for path in loose))
    names = [str(path.relative_to(folder)) for path, _ in found]
    return Files(folder, names, [label for _, label in found], classes, total)


def endings_in_words(counts: Mapping[str, int]) -> str:
    """Say in words how many files have which ending."""
    return ", ".join(f"{count} x {shown(kind)[1:-1]}" for kind, count in sorted(counts.items()))


def _but(counts: Mapping[str, int]) -> str:
    return f", but {endings_in_words(counts)}" if counts else ""


def video_folder(folder: str | Path, split: str = "train") -> dict[str, Source]:
    """Find class/video.mp4 or class/video/frame.jpg, or the same below train/, val/, ..."""
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


def _videos(folder: Path, others: list[Path]) -> Iterator[Path]:
    """List all videos of a class in the order of their names, also in folders within folders.

    Files that are neither videos nor frames are added to `others`.
    """
    seen = {os.path.realpath(folder)}
    for where, folders, files in os.walk(folder, followlinks=True):
        # a link can lead back to where it is
        folders[:] = sorted(n for n in folders if os.path.realpath(Path(where, n)) not in seen)
        seen.update(os.path.realpath(Path(where, name)) for name in folders)
        if {ending_of(name) for name in files} & set(IMAGE_ENDINGS):
            if Path(where) == folder:
                raise ValueError(
                    f"{where!r} has images in it, where videos or folders of frames, one for each "
                    "video, belong"
                )
            yield Path(where)
        for name in sorted(files):
            if ending_of(name) in VIDEO_ENDINGS:
                yield Path(where, name)
            elif ending_of(name) not in IMAGE_ENDINGS:
                others.append(Path(where, name))
