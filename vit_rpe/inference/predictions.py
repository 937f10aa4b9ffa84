"""Predictions: names of classes with probabilities, for one input after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from vit_rpe.data import WorkerContext
from vit_rpe.extras import MissingExtra

from .classifier import Classifier
from .inputs import Input, Pixels, Reader, find_inputs


@dataclass(frozen=True)
class Guess:
    """A class that a model takes something for; `index` is its number."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True)
class Prediction:
    """A model's answer about a file, the likeliest class first, or why it can say nothing.

    `picture` (H, W, 3) is what the model saw, if it was asked for: of a video, the frame in the
    middle.
    """

    file: str
    guesses: tuple[Guess, ...] = ()
    error: str | None = None
    picture: NDArray[np.uint8] | None = None

    @property
    def best(self) -> Guess:
        """The likeliest class."""
        return self.guesses[0]


def predict(
    classifier: Classifier,
    inputs: str | Path | bytes | Iterable[str | Path | bytes | Input],
    *,
    top_k: int = 5,
    batch_size: int = 64,
    workers: int = 0,
    pictures: int = 0,
) -> Iterator[Prediction]:
    """Yield a prediction for every input, in order; a bad one has an `error` in place of guesses.

    `inputs` are paths of files and folders (see `find_inputs`), or the bytes of files. The first
    `pictures` predictions keep what the model saw.
    """
    given = [inputs] if isinstance(inputs, str | Path | bytes) else inputs
    found = find_inputs(given, classifier.videos is not None).found
    for batch in _batches(Reader(found, classifier.ways), batch_size, workers):
        guesses: dict[int, tuple[Guess, ...]] = {}
        for way, _ in enumerate(classifier.ways):
            numbers = [n for n, x in enumerate(batch) if x.pixels is not None and x.made_by == way]
            if numbers:
                stack = torch.stack([x for n in numbers if (x := batch[n].pixels) is not None])
                answers = _guesses(classifier, classifier.probabilities(stack, way), top_k)
                guesses.update(zip(numbers, answers, strict=True))
        for number, each in enumerate(batch):
            picture = _picture(each.pixels) if pictures > 0 and each.pixels is not None else None
            pictures -= picture is not None
            error = str(each.error) or None
            yield Prediction(each.name, guesses.get(number, ()), error, picture)


def _batches(reader: Reader, batch_size: int, workers: int) -> Iterator[list[Pixels]]:
    count = min(workers, -(-len(reader) // batch_size) - 1)  # what is one batch needs no worker
    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=batch_size,
        num_workers=max(count, 0),
        collate_fn=list,
        multiprocessing_context=WorkerContext() if count > 0 else None,
        generator=torch.Generator(),  # its draws must not be those of the model
    )
    for batch in loader:
        for each in batch:
            if isinstance(each.error, MissingExtra):
                raise each.error
        yield batch


def _guesses(classifier: Classifier, probabilities: Tensor, top_k: int) -> list[tuple[Guess, ...]]:
    best, index = probabilities.sort(descending=True, stable=True)  # of equal ones the first
    shown: Iterator[Any] = zip(index[:, :top_k].tolist(), best[:, :top_k].tolist(), strict=True)
    names = classifier.names
    return [
        tuple(Guess(names[int(n)], n, value) for n, value in zip(numbers, row, strict=True))
        for numbers, row in shown
    ]


def _picture(pixels: Tensor) -> NDArray[np.uint8]:
    """Return an image (C, H, W), or the middle one of a clip or of the views of one."""
    while pixels.ndim > 4:
        pixels = pixels[len(pixels) // 2]
    if pixels.ndim == 4:
        pixels = pixels[:, pixels.shape[1] // 2]
    return pixels.permute(1, 2, 0).contiguous().numpy()
