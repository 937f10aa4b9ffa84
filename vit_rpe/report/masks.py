"""Masks in a page: every layer and head by offset, and their way through training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vit_rpe.training import Exhibit, as_bytes, offset_tables, read_exhibits

from .pictures import encode
from .subject import Subject


def masks(subject: Subject, budget: int) -> dict[str, Any] | None:
    """Return the masks of a run's snapshots, or of the model at hand, within some bytes."""
    found = _snapshots(subject)
    if not found:
        return None
    layers = list(_layers(found[-1]))
    if not layers:
        return None
    size = sum(found[0].tensors[name].numel() for name in layers) * 4 // 3
    total = len(found)
    found = spread(found, max(1, budget // max(size, 1)))
    kept = spread(layers, max(1, int(len(layers) * budget / max(size * len(found), 1))))
    if len(found) < total:
        subject.notes.append(f"masks: {len(found)} of {total} moments are shown, to save space")
    if len(kept) < len(layers):
        subject.notes.append(f"masks: {len(kept)} of {len(layers)} layers, to save space")
    if sum(found[0].tensors[name].numel() for name in kept) * len(found) * 4 // 3 > budget:
        subject.notes.append("masks: one layer is too large for the page")
        return None
    return {
        "epochs": [each.epoch for each in found],
        "steps": [each.values.get("step") for each in found],
        "layers": [_layer(name, found) for name in kept],
        "source": "run" if found[0].values.get("step") is not None else subject.model_words,
    }


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Keep at most `most` items at equal distances: the last, and the first if there is room."""
    count = len(items)
    if count <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[round(i * (count - 1) / (most - 1))] for i in range(most)]


def _snapshots(subject: Subject) -> list[Exhibit]:
    if subject.run is not None:
        found, wrong = read_exhibits(subject.run.folder, "masks")
        subject.notes += wrong
        last = next((layers for each in reversed(found) if (layers := _layers(each))), {})
        subject.notes += [
            f"masks of epoch {each.epoch}: they are not those of the other epochs"
            for each in found
            if _layers(each) != last
        ]
        if last:
            return [each for each in found if _layers(each) == last]
    if subject.model is None:
        return []
    tensors: dict[str, Tensor] = {}
    for name, table in offset_tables(subject.model).items():
        tensors[name], tensors[f"{name}:range"] = as_bytes(table)
    return [Exhibit("masks", 0, tensors, {})] if tensors else []


def _layers(exhibit: Exhibit) -> dict[str, tuple[int, ...]]:
    """Return the shape of every table of bytes that has ranges: (H, sides...), sides are odd."""
    found = {}
    for name, codes in exhibit.tensors.items():
        ranges = exhibit.tensors.get(f"{name}:range")
        if ranges is None or codes.dtype != torch.uint8 or not 2 <= codes.ndim <= 4:
            continue
        whole = tuple(ranges.shape) == (len(codes), 2) and bool(ranges.double().isfinite().all())
        if whole and all(n % 2 for n in codes.shape[1:]):
            found[name] = tuple(codes.shape)
    return found


def _layer(name: str, found: list[Exhibit]) -> dict[str, Any]:
    first = found[0].tensors[name]
    return {
        "name": name,
        "heads": len(first),
        "sides": list(first.shape[1:]),
        "codes": [encode(each.tensors[name].numpy().tobytes()) for each in found],
        "ranges": [
            each.tensors[f"{name}:range"].double().numpy().round(5).tolist() for each in found
        ],
    }
