"""The content of a report: plain values of one or several runs, within a budget of bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from vit_rpe import __version__
from vit_rpe.messages import short
from vit_rpe.training import Exhibit, read_exhibits

from .about import events_of, figures, origin_of, recipe_of
from .answers import answers
from .colors import ANCHORS
from .curves import curves, skipped
from .explorer import explorer
from .masks import masks
from .pictures import Album, fitted
from .subject import Subject

LIMIT = 10_000_000  # bytes of a report
ROOM = 400_000  # for the page itself, and what has no budget of its own
LONGEST_NAME = 100  # characters of a class
POINTS = 500  # of a curve
SHARES = {"pictures": 0.25, "batches": 0.1, "masks": 0.2}  # the explorer has the rest


@dataclass(frozen=True)
class Room:
    """The limits of a subject: bytes of its parts, characters of a name, points of a curve."""

    budget: int
    name: int
    points: int

    @classmethod
    def of(cls, budget: int, part: float) -> Room:
        return cls(budget, max(12, int(LONGEST_NAME * part)), max(20, int(POINTS * part)))


def content_of(subjects: Sequence[Subject], limit: int = LIMIT) -> dict[str, Any]:
    """Return what a page shows; what does not fit is thinned, and the page says so."""
    part = 1.0
    while True:
        room = Room.of(int(part * (limit - ROOM)) // len(subjects), part)
        shown = [_of_subject(subject, room) for subject in subjects]
        for one, name in zip(shown, told_apart(subjects), strict=True):
            one["name"] = name
        content = {
            "version": __version__,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "anchors": ANCHORS,
            "runs": shown,
        }
        content = plain(content)
        if len(as_json(content)) <= limit - ROOM // 2 or room.budget < 1000:
            return content
        part /= 2


def as_json(content: Any) -> str:
    """Return JSON that can stand in a page: no text in it ends its block, or begins another."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def told_apart(subjects: Sequence[Subject]) -> list[str]:
    """Return the names of subjects; runs of one name have the folders above in front of it."""
    names = [subject.name for subject in subjects]
    paths = [subject.run.folder.parts if subject.run else () for subject in subjects]
    for depth in range(2, max(map(len, paths))):
        same = [names.count(name) > 1 for name in names]
        names = [
            "/".join(path[-depth:]) if again and path else name
            for name, path, again in zip(names, paths, same, strict=True)
        ]
    return names


def plain(value: Any) -> Any:
    """Return a value with None for numbers that JSON does not have: NaN, infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _of_subject(subject: Subject, room: Room) -> dict[str, Any]:
    before, budget = list(subject.notes), room.budget
    classes = [short(name, room.name) for name in subject.all_classes]
    if classes != subject.all_classes:
        subject.notes.append(f"classes: names are cut to at most {room.name} characters")
    parts = {name: int(share * budget) for name, share in SHARES.items()}
    album, sheet = Album(parts["pictures"]), Album(parts["batches"])
    found = subject.attempt("answers", lambda: answers(subject, album))
    tables = subject.attempt("masks", lambda: masks(subject, parts["masks"]))
    left = budget - sum(len(json.dumps(each)) for each in (found, tables))
    left -= parts["pictures"] - album.left + parts["batches"]
    rows = subject.attempt("explorer", lambda: explorer(subject, left))
    run = subject.run
    if album.refused:
        subject.notes.append("samples: not all pictures fit into the page")
    content = {
        "name": subject.name,
        "model": _model_of(subject),
        "words": subject.model_words,
        "figures": subject.attempt("figures", lambda: figures(subject)) or [],
        "classes": classes,
        "answers": found,
        "pictures": album.addresses,
        "masks": tables,
        "explorer": rows,
        "origin": origin_of(run.lines("start") if run is not None else subject.starts),
    }
    if run is not None:
        content.update(
            curves=curves(run, room.points),
            skipped=skipped(run),
            stepsPerEpoch=run.steps_per_epoch,
            recipe=recipe_of(run),
            events=events_of(run),
            batches=subject.attempt("training batches", lambda: _batches(subject, sheet)),
            batchPictures=sheet.addresses,
        )
    content["notes"], subject.notes = subject.notes, before
    return content


def _model_of(subject: Subject) -> str:
    if subject.run is not None:
        return subject.run.recipe.model
    return str(getattr(subject.model, "pretrained_cfg", {}).get("architecture") or "")


def _batches(subject: Subject, sheet: Album) -> list[dict[str, Any]]:
    """Return the training batches that a run kept, with pictures."""
    assert subject.run is not None
    exhibits, wrong = read_exhibits(subject.run.folder, "batch")
    subject.notes += wrong
    batches = [
        subject.attempt(
            f"the batch of epoch {each.epoch + 1}", lambda each=each: _batch(each, sheet)
        )
        for each in exhibits
    ]
    return [batch for batch in batches if batch is not None]


def _batch(exhibit: Exhibit, sheet: Album) -> dict[str, Any]:
    tensors = exhibit.tensors
    images = tensors.get("images", torch.empty(0))
    if images.dtype != torch.uint8 or images.ndim not in (4, 5) or images.shape[1] != 3:
        raise ValueError("it has no pictures")
    if not {"classes", "weights"} <= tensors.keys():
        raise ValueError("it has no targets")
    clips = images.transpose(1, 2) if images.ndim == 5 else images[:, None]
    samples = []
    for frames, classes, weights in zip(
        clips, tensors["classes"].tolist(), tensors["weights"].tolist(), strict=True
    ):
        targets = [[c, round(w, 3)] for c, w in zip(classes, weights, strict=True)]
        pictures = [sheet.add(frame) for frame in fitted(frames, 112)]
        samples.append({"pictures": pictures, "targets": targets})
    return {"epoch": exhibit.epoch + 1, "samples": samples}
