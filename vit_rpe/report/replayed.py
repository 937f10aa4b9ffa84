"""A replayed step to look at: its figures as a table and as JSON, its batch as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vit_rpe import __version__
from vit_rpe.files import atomic_write
from vit_rpe.inference import Guess, Prediction, as_png
from vit_rpe.messages import counted, entry
from vit_rpe.training import Range, Replayed, Seen, json_number, layer_of

FIGURES, PICTURE = "replay.json", "batch.png"
SHOWN = 3  # parameters that are named


@dataclass(frozen=True)
class LayerRow:
    """A layer: the norm of its gradient, and the range of what it gives, where there are any."""

    name: str
    gradient: float | None
    range: Range | None


def default_folder(replayed: Replayed) -> Path:
    """Return the folder of a replayed step, in that of its run."""
    return replayed.history.folder / "replay" / f"step-{replayed.seen.outcome.step:08d}"


def write_replay(replayed: Replayed, folder: Path) -> tuple[Path, Path]:
    """Write the figures and the picture of a step into a folder; return their paths."""
    figures, picture = folder / FIGURES, folder / PICTURE
    with atomic_write(figures) as file:
        file.write((json.dumps(content(replayed), indent=1) + "\n").encode())
    with atomic_write(picture) as file:
        file.write(as_png([*_predictions(replayed.seen)]))
    return figures, picture


def rows(seen: Seen) -> list[LayerRow]:
    """Return the layers in the order of the model, parameters that are in none of them first."""
    squares: dict[str, float] = {}
    for name, norm in seen.gradients.items():
        layer = layer_of(name, seen.layers)
        squares[layer] = squares.get(layer, 0.0) + norm**2
    names = [*(name for name in squares if name not in seen.layers), *seen.layers]
    return [
        LayerRow(
            name,
            math.sqrt(squares[name]) if name in squares else None,
            seen.activations.ranges.get(name),
        )
        for name in names
    ]


def summary(replayed: Replayed) -> str:
    """Say in a few lines what the step came to, and whether that is what it was."""
    seen, outcome = replayed.seen, replayed.seen.outcome
    lines = [
        entry("step", f"{outcome.step} in epoch {seen.epoch}, {replayed.route.text()}"),
        entry("batch", counted(len(seen.samples), "sample")),
        entry("loss", f"{outcome.loss:.6g}{', skipped' if outcome.skipped else ''}"),
        entry("gradient", f"{outcome.grad_norm:.6g}, the norm before clipping"),
        entry("lr", f"{outcome.lr:.6g}"),
        entry("record", _compared(replayed)),
    ]
    if (module := seen.activations.first_nonfinite) is not None:
        lines.append(entry("not finite", f"first in {module}, of all modules"))
    if seen.bad_gradients:
        named = ", ".join(seen.bad_gradients[:SHOWN])
        more = ", ..." if len(seen.bad_gradients) > SHOWN else ""
        count = f"{len(seen.bad_gradients)} of {len(seen.gradients)} gradients"
        lines.append(entry("", f"{count}, from the output: {named}{more}"))
    if seen.second_pass:
        lines.append(entry("layers", "measured in a second pass, without torch.compile"))
    return "\n".join(lines)


def table(seen: Seen) -> str:
    """Return a line for each layer that learns: norm of its gradient, range of its output."""
    head = ["layer", "gradient", "min", "max", "rms", "not finite"]
    cells = [head]
    for row in rows(seen):
        if row.gradient is not None:
            cells.append([row.name, f"{row.gradient:.4g}", *_cells(row.range)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers in cells:
        right = (f"{each:>{width}}" for each, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join([f"{name:<{widths[0]}}", *right]).rstrip())
    return "\n".join(lines)


def content(replayed: Replayed) -> dict[str, Any]:
    """Return everything that was seen as plain JSON; NaN and infinity are strings."""
    seen, outcome = replayed.seen, replayed.seen.outcome
    checkpoint = replayed.route.checkpoint
    return {
        "version": __version__,
        "step": outcome.step,
        "epoch": seen.epoch,
        "loss": json_number(outcome.loss),
        "grad_norm": json_number(outcome.grad_norm),
        "lr": json_number(outcome.lr),
        "skipped": outcome.skipped,
        "checkpoint": None if checkpoint is None else checkpoint.name,
        "equal_steps": replayed.compared,
        "equal": replayed.step_compared,
        "first_nonfinite": seen.activations.first_nonfinite,
        "nonfinite_gradients": seen.bad_gradients,
        "layers": [
            {
                "layer": row.name,
                "gradient": None if row.gradient is None else json_number(row.gradient),
                **_range(row.range),
            }
            for row in rows(seen)
        ],
        "modules": {name: _range(each) for name, each in seen.activations.ranges.items()},
        "gradients": {name: json_number(norm) for name, norm in seen.gradients.items()},
        "samples": [
            {"key": sample.key, "classes": [list(each) for each in sample.classes]}
            for sample in seen.samples
        ],
    }


def _compared(replayed: Replayed) -> str:
    """Say what was compared: a step that differs would not have come to this."""
    count = replayed.compared
    if not replayed.step_compared:
        others = f"; {counted(count, 'step')} before it: equal, bit for bit" if count else ""
        return f"the run recorded nothing of this step{others}"
    are = "is" if count == 2 else "are"
    before = f", as {are} {counted(count - 1, 'step')} before it" if count > 1 else ""
    return f"equal, bit for bit: loss, gradient norm and learning rate{before}"


def _cells(seen: Range | None) -> list[str]:
    if seen is None:
        return ["", "", "", ""]
    if not seen.finite:
        return ["", "", "", f"{seen.nonfinite:,}"]
    numbers = [f"{value:.4g}" for value in (seen.low, seen.high, seen.rms)]
    return [*numbers, f"{seen.nonfinite:,}"]


def _range(seen: Range | None) -> dict[str, Any]:
    if seen is None:
        return {}
    none = seen.finite == 0
    return {
        "min": None if none else seen.low,
        "max": None if none else seen.high,
        "rms": None if none else json_number(seen.rms),
        "nonfinite": seen.nonfinite,
        "values": seen.finite + seen.nonfinite,
    }


def _predictions(seen: Seen) -> Iterator[Prediction]:
    """Yield what is drawn for each sample: its picture, its key, its classes with their shares."""
    for pixels, sample in zip(seen.pictures.tensors["images"], seen.samples, strict=False):
        guesses = tuple(Guess(name, 0, share) for name, share in sample.classes)
        yield Prediction(sample.key, guesses or (Guess("bad", 0, 0.0),), picture=_picture(pixels))


def _picture(pixels: Tensor) -> NDArray[np.uint8]:
    """Return an image as rows, columns, colors; of a clip two frames beside each other."""
    if pixels.ndim == 3:
        return pixels.movedim(0, -1).numpy()
    frames = pixels.movedim(0, -1)  # (T, rows, columns, 3)
    height, width = (side + max(1, side // 32) for side in frames.shape[1:3])  # with a gap
    sheet = np.full((-(-len(frames) // 2) * height, 2 * width, 3), 255, np.uint8)
    for number, frame in enumerate(frames.numpy()):
        top, left = number // 2 * height, number % 2 * width
        sheet[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return sheet
