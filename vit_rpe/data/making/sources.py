"""Sources of samples for shards: files, arrays, datasets."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vit_rpe.files import read_regular

from ..errors import BadData
from ..images.decode import upright
from ..videos.containers import ending_of
from .encode import folder_archive, frame_archive, frame_files


class Item(NamedTuple):
    """An image or video before it is in a shard: a name for its key, and its bytes as a file."""

    name: str
    label: int
    ending: str
    data: bytes


class Source(Protocol):
    """A sequence of items, and what tells it from other sources."""

    @property
    def classes(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def item(self, i: int) -> Item: ...
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class Files:
    """Image or video files, with their bytes as they are; a folder is a video of its frames."""

    root: Path
    names: Sequence[str]
    labels: Sequence[int]
    classes: Sequence[str]
    passed_over: Mapping[str, int] = field(default_factory=dict)  # other files, by their ending

    def __len__(self) -> int:
        return len(self.names)

    def item(self, i: int) -> Item:
        path, label = self.root / self.names[i], self.labels[i]
        if path.is_dir():
            return Item(path.name, label, "zip", folder_archive(path))
        if not ending_of(path.name) and path.exists():
            raise BadData(f"{self.names[i]!r} is no folder of frames, and a file without an ending")
        return Item(path.stem, label, ending_of(path.name), read_regular(path))

    def fingerprint(self) -> str:
        """Hash names, labels and sizes, so that a file that was replaced is noticed."""
        sizes = map(_sizes, (self.root / name for name in self.names))
        return digest(zip(self.names, self.labels, sizes, strict=True))


@dataclass(frozen=True)
class Arrays:
    """Gray images in an array (N, H, W) of bytes, kept as PNG."""

    images: NDArray[np.uint8]
    labels: NDArray[Any]
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.images)

    def item(self, i: int) -> Item:
        return Item("", int(self.labels[i]), "png", as_png(self.images[i]))

    def fingerprint(self) -> str:
        return digest([self.images.shape, self.images.tobytes(), self.labels.tolist()])


@dataclass(frozen=True)
class Clips:
    """Gray clips in an array (N, T, H, W) of bytes, kept as zip archives of PNG."""

    clips: NDArray[np.uint8]
    labels: NDArray[Any]
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.clips)

    def item(self, i: int) -> Item:
        return clip_item(self.clips[i], int(self.labels[i]))

    def fingerprint(self) -> str:
        return digest([self.clips.shape, self.clips.tobytes(), self.labels.tolist()])


@dataclass(frozen=True)
class Dataset:
    """Any dataset of (PIL image or array, label) pairs, torchvision's above all, kept as PNG."""

    dataset: Any
    name: str
    classes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, i: int) -> Item:
        image, label = self.dataset[i]
        return Item("", int(label), "png", as_png(image))

    def fingerprint(self) -> str:
        return digest([self.name, len(self)])


def clip_item(clip: NDArray[np.uint8], label: int) -> Item:
    """Make an item of a clip (T, H, W)."""
    return Item("", label, "zip", frame_archive(("png", as_png(frame)) for frame in clip))


def as_png(image: Image.Image | NDArray[np.uint8]) -> bytes:
    """Encode an image as PNG, without the time of day or anything else that could differ."""
    stream = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    upright(picture).save(stream, format="PNG")
    return stream.getvalue()


def _sizes(path: Path) -> int | list[int]:
    """Size of a file, or of each frame in a folder; -1 if missing (a bad sample later)."""
    try:
        if path.is_dir():
            return [file.stat().st_size for file in frame_files(path)]
        return path.stat().st_size
    except OSError:
        return -1


def digest(parts: Any) -> str:
    """Hash parts, bytes or anything with a repr, to one SHA-256 sum."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part if isinstance(part, bytes) else repr(part).encode("utf-8", "replace"))
    return total.hexdigest()
