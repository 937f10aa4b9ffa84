"""The attention explorer: a few samples whose rows of attention the page computes.

Shapes: H heads, L tokens, M features of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit_rpe.attention import attention_rows
from vit_rpe.data import Batch
from vit_rpe.messages import counted
from vit_rpe.training import offset_tables, watched_attention

from .masks import spread
from .packing import PackedMask, PackedRows, Precision, page_rows
from .pictures import as_address, fitted
from .subject import Subject

SAMPLES = 6
TOLERANCE = 5e-3  # of rows: twice as good as is promised
CHECKED = 12  # queries of each layer, whose rows are compared
FIRST_CHOICES: tuple[tuple[int, Precision], ...] = (  # samples, and of what precision
    *((6, "half"), (4, "half"), (6, "byte"), (4, "byte")),
    *((2, "half"), (2, "byte"), (1, "half"), (1, "byte")),
)
SIDE = 288  # pixels of a picture


@dataclass(frozen=True)
class Seen:
    """The input of one layer for one sample: q and k (H, L, M), feature-mapped or plain."""

    name: str
    kernel: str
    q: Tensor
    k: Tensor
    mask: Any

    @property
    def floats(self) -> int:
        return self.q.numel() + self.k.numel()


@dataclass(frozen=True)
class Choice:
    """How much of an explorer is kept."""

    samples: int
    precision: Precision
    layers: int
    heads: int

    def bytes(self, one: Seen) -> int:
        """Return about how many characters this takes in a page."""
        of_head = (one.q.numel() + one.k.numel()) // len(one.q)
        width = 2 if self.precision == "half" else 1
        scales = 8 * one.q.shape[1]
        return self.samples * self.layers * self.heads * (of_head * width + scales) * 4 // 3


@torch.no_grad()
def explorer(subject: Subject, budget: int) -> dict[str, Any] | None:
    """Return the samples and the packed features of an explorer that fits into some bytes."""
    model: Any = subject.model
    if model is None or subject.loader is None:
        return None
    numbers = chosen(subject)
    batch, pixels = subject.pick(numbers)
    first = _seen(model, batch.images[:1])[0]
    if not first:
        return None
    tables = offset_tables(model)
    for choice in _choices(len(first), first[0]):
        pictures = choice.samples * 40_000
        if choice.bytes(first[0]) + pictures > budget:
            continue
        found = _packed(model, batch, choice, tables, subject.order)
        if found is None:
            continue
        if left_out := _left_out(choice, len(numbers), len(first), len(first[0].q)):
            subject.notes.append(f"explorer: {', '.join(left_out)}, to save space")
        shown = pixels[: choice.samples]
        return {
            "words": subject.model_words,
            "precision": choice.precision,
            **found,
            "samples": [
                {**sample, **_pictures(model, image, key, label)}
                for sample, image, key, label in zip(
                    found["samples"], shown, batch.keys, batch.labels.tolist(), strict=False
                )
            ],
        }
    subject.notes.append("explorer: the features of one layer are too large for the page")
    return None


def chosen(subject: Subject) -> list[int]:
    """Choose samples: the two worst, then others from small to large losses, of many classes."""
    result = subject.evaluation
    assert subject.loader is not None
    if result is None or not result.count:
        return list(range(min(SAMPLES, subject.loader.shards.num_samples)))
    order = np.argsort(-result.losses, kind="stable")
    rows = order[:2].tolist()
    classes = {*result.labels[rows].tolist()}
    for part in np.array_split(order[:1:-1], SAMPLES - 2):
        row = next((row for row in part if result.labels[row] not in classes), None)
        rows += part[:1].tolist() if row is None else [int(row)]
        classes.add(int(result.labels[rows[-1]]))
    return result.samples[rows].tolist()


def _choices(layers: int, one: Seen) -> Iterator[Choice]:
    """Yield what to keep, most first: fewer samples and bytes before fewer layers and heads."""
    heads = len(one.q)
    for samples, precision in FIRST_CHOICES:
        yield Choice(samples, precision, layers, heads)
    for part in (2, 3, 4, 6, 12, 24, layers):
        if layers // part:
            yield Choice(1, "half", layers // part, heads)
            yield Choice(1, "byte", layers // part, heads)
    for part in (2, 4, heads):
        if heads // part:
            yield Choice(1, "byte", 1, heads // part)


def _left_out(choice: Choice, samples: int, layers: int, heads: int) -> list[str]:
    """Return in words what a choice leaves out of what there is."""
    words = []
    if choice.samples < samples:
        words.append(f"{choice.samples} of {counted(samples, 'sample')}")
    if choice.precision == "byte":
        words.append("features of 8 instead of 16 bits")
    if choice.layers < layers or choice.heads < heads:
        words.append(f"{choice.layers} of {layers} layers with {choice.heads} of {heads} heads")
    return words


def _seen(model: Any, images: Tensor) -> tuple[list[Seen], Tensor]:
    """Return what each layer is given for one sample, and the logits."""
    found: list[Seen] = []

    def keep(name: str, layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> None:
        if callable(getattr(layer, "features", None)):
            q, k = layer.features(q, k)
            found.append(Seen(name, "linear", q[0].float(), k[0].float(), mask))
        else:
            found.append(Seen(name, "softmax", q[0].float(), k[0].float(), mask))

    with watched_attention(model, keep):
        logits = model(images)
    return found, logits


def _packed(
    model: Any,
    batch: Batch,
    choice: Choice,
    tables: dict[str, Tensor],
    order: list[int] | None,
) -> dict[str, Any] | None:
    """Pack samples and layers; None if the page's rows would not be near enough."""
    layers: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    error = 0.0
    for number in range(min(choice.samples, len(batch.images))):
        seen, logits = _seen(model, batch.images[number : number + 1])
        kept = []
        for one in spread(seen, choice.layers):
            mask = _mask(model, one, tables.get(one.name), choice.heads)
            q, k = (PackedRows.of(x, choice.precision) for x in _kept(one, choice.heads))
            error = max(error, _error(one, choice.heads, q, k, mask))
            if error > TOLERANCE:
                return None
            kept.append({"q": q.as_json(), "k": k.as_json()})
            if number == 0:
                head = {"name": one.name, "kernel": one.kernel, "features": one.q.shape[-1]}
                layers.append({**head, "heads": choice.heads, "mask": mask.as_json()})
        logits = logits if order is None else logits[:, order]
        probability, best = logits.float().softmax(-1)[0].max(-1)
        samples.append({"layers": kept, "predicted": int(best), "confidence": float(probability)})
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    return {"layers": layers, "samples": samples, "error": error, "prefix": prefix}


def _kept(one: Seen, heads: int) -> tuple[Tensor, Tensor]:
    """Return q and k of the heads that are kept; the scale of softmax is in the queries."""
    q, k = one.q[:heads], one.k[:heads]
    return (q * q.shape[-1] ** -0.5, k) if one.kernel == "softmax" else (q, k)


def _mask(model: Any, one: Seen, table: Tensor | None, heads: int) -> PackedMask:
    grid = tuple(int(n) for n in model.patch_embed.grid_size)
    prefix = one.q.shape[1] - prod(grid)
    if table is None:  # no mask: every weight is 1
        table = torch.ones(len(one.q), *(2 * n - 1 for n in grid))
    full = PackedMask.of(table.cpu(), one.mask, grid, prefix)
    parts = (full.codes, full.ranges, full.row, full.column, full.corner)
    return PackedMask(grid, *(part[:heads] for part in parts))


def _error(one: Seen, heads: int, q: PackedRows, k: PackedRows, mask: PackedMask) -> float:
    """Return the largest error of some rows that the page computes."""
    at = spread(range(one.q.shape[1]), CHECKED)
    kernel: Any = one.kernel
    exact = attention_rows(one.q.double(), one.k.double(), one.mask, at, kernel)[:heads]
    return float((page_rows(q, k, mask, one.kernel, at) - exact).abs().max())


def _pictures(model: Any, pixels: Tensor, key: str, label: int) -> dict[str, Any]:
    """Return a picture of a sample, or one of each slice of a clip."""
    grid: Sequence[int] = model.patch_embed.grid_size
    frames = [pixels]
    if pixels.ndim == 4:
        steps = pixels.shape[1] // grid[0]
        frames = [pixels[:, t * steps] for t in range(grid[0])]
    frames = [fitted(frame[None], SIDE)[0] for frame in frames]
    return {"key": key, "label": label, "pictures": [as_address(frame) for frame in frames]}
