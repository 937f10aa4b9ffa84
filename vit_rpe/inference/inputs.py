"""Inputs of predictions: files, folders, bytes; and what a model is given of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from vit_rpe.data import (
    IMAGE_ENDINGS,
    VIDEO_ENDINGS,
    BadData,
    Images,
    Modality,
    Transform,
    bad_if_too_large,
    ending_of,
    is_video,
)
from vit_rpe.data.making import folder_archive
from vit_rpe.extras import MissingExtra
from vit_rpe.files import read_regular
from vit_rpe.messages import cut


class Input(NamedTuple):
    """One image or video: its name, and its bytes or the file, or folder of frames, with them."""

    name: str
    content: bytes | Path

    def read(self) -> bytes:
        """Return its bytes; BadData if there are none to be had."""
        if isinstance(self.content, bytes):
            return self.content
        try:
            whole = folder_archive if self.content.is_dir() else read_regular
            return whole(self.content)
        except OSError as error:
            raise BadData(error.strerror or str(error)) from None


@dataclass(frozen=True)
class Inputs:
    """The inputs that were found, and how many other files in their folders, by ending."""

    found: list[Input] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


def find_inputs(given: Iterable[str | Path | bytes | Input], videos: bool = False) -> Inputs:
    """Find the files that paths mean: themselves, or those of a folder and the folders in it.

    Of folders images are taken. With `videos` those are, and folders with images in them, which are
    the frames of a video. What is named itself is taken whatever its name.
    """
    inputs = Inputs()
    for each in given:
        if isinstance(each, Input):
            inputs.found.append(each)
        elif isinstance(each, bytes):
            inputs.found.append(Input("-", each))
        elif os.path.isdir(each):
            _search(Path(each), videos, inputs)
        else:
            inputs.found.append(Input(str(each), Path(each)))
    return inputs


def _search(root: Path, videos: bool, inputs: Inputs) -> None:
    endings = VIDEO_ENDINGS if videos else IMAGE_ENDINGS
    for folder, names in _folders(root, inputs.found):
        if videos and any(ending_of(name) in IMAGE_ENDINGS for name in names):
            inputs.found.append(Input(str(folder), folder))
        for name in names:
            if ending_of(name) in endings:
                inputs.found.append(Input(str(folder / name), folder / name))
            elif not (videos and ending_of(name) in IMAGE_ENDINGS):
                inputs.passed_over[Path(name).suffix.lower() or "no ending"] += 1


def _folders(root: Path, closed: list[Input]) -> Iterator[tuple[Path, list[str]]]:
    """Yield all folders with the names of their files, in order, without those that are hidden.

    A folder that cannot be looked into is added to `closed`: it will be bad when it is read.
    """
    seen = {os.path.realpath(root)}

    def note(error: OSError) -> None:
        closed.append(Input(str(error.filename), Path(error.filename)))

    for where, folders, names in os.walk(root, onerror=note, followlinks=True):
        shown = sorted(name for name in folders if not name.startswith("."))
        # a link can lead back to where it is
        folders[:] = [name for name in shown if os.path.realpath(Path(where, name)) not in seen]
        seen.update(os.path.realpath(Path(where, name)) for name in folders)
        yield Path(where), sorted(name for name in names if not name.startswith("."))


class Pixels(NamedTuple):
    """An input that was read: bytes of pixels, and which transform made them, or an error."""

    name: str
    made_by: int = 0
    pixels: Tensor | None = None
    error: str | MissingExtra = ""


@dataclass(frozen=True)
class Reader(Dataset[Pixels]):
    """The inputs as a model of evaluation sees them, by number; workers of a DataLoader call it.

    `ways` are modalities with their transforms: images, and for a model of videos these too.
    """

    inputs: Sequence[Input]
    ways: Sequence[tuple[Modality, Transform]]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> Pixels:
        each = self.inputs[number]
        try:
            with bad_if_too_large():
                data = each.read()
                made_by = self._way(data)
                modality, transform = self.ways[made_by]
                return Pixels(each.name, made_by, transform(0)(modality.decode(data)))
        except BadData as error:
            return Pixels(each.name, error=cut(error))
        except MissingExtra as error:  # handed over: a DataLoader makes a page of what is raised
            return Pixels(each.name, error=error)

    def _way(self, data: bytes) -> int:
        """Return the number of the way that bytes of this kind take."""
        wanted = is_video(data)
        for number, (modality, _) in enumerate(self.ways):
            if wanted != isinstance(modality, Images):
                return number
        raise BadData("a video or an archive of frames, and the model is of images")
