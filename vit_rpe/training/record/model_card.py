"""The model card of a checkpoint: a README.md in the Hub's dialect, made of what the run knows."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml
from torch import nn

from vit_rpe.data import Loader
from vit_rpe.messages import printable

from ..recipe.schema import Recipe
from ..run import Run
from .integrity import EMA
from .saved_model import class_names

CARD = "README.md"
MOST_CLASSES = 100  # that are listed by name
OF_THIS_MACHINE = {"data_dir", "output", "experiment", "data_cache", "resume", "workers", "device"}
PATHS = ("model", "initial_checkpoint", "kd_model_name", "kd_checkpoint")
LOCAL = "local-dir:"  # what timm calls a folder

CARD_TEXT = """{front}# {title}

{model} with {parameters:.1f} M parameters, for {size}: a classifier of {num_classes} classes,
trained with vit_rpe on {data}, {samples} samples.

| weights | {columns} |
|---|{rules}|
{rows}

Measured on {val_samples} samples ({validation}), each counted once, after epoch {epoch} of
{epochs}.{average}

## Use

```python
import timm
import vit_rpe  # registers its models with timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # or "hf-hub:USER/NAME"
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
```

`vit-rpe predict FILE --checkpoint FOLDER` names what is on images and videos. {classes}

## Recipe

{fence}yaml
{recipe}{fence}
"""


@dataclass(frozen=True)
class ModelCard:
    """Facts about a run's model, whatever its weights are; `text` adds the accuracy."""

    title: str
    recipe: Recipe
    num_parameters: int
    sides: Sequence[int]
    num_classes: int
    classes: Sequence[str]
    samples: int
    val_samples: int

    @classmethod
    def of(cls, run: Run, net: nn.Module, loader: Loader, val_loader: Loader | None) -> ModelCard:
        """Collect the facts; `net` is the plain model, before it is wrapped for several ranks."""
        config: dict[str, Any] = net.pretrained_cfg  # pyright: ignore
        return cls(
            run.folder.name,
            run.recipe,
            sum(parameter.numel() for parameter in net.parameters()),
            config["input_size"][1:],
            int(net.num_classes),  # pyright: ignore
            class_names(net),
            loader.shards.num_samples,
            0 if val_loader is None else val_loader.shards.num_samples,
        )

    def texts(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the cards of a checkpoint by their files; `row` has the metrics of its epoch."""
        prefixes = {CARD: "eval", f"{EMA}/{CARD}": "ema"} if "ema_top1" in row else {CARD: "eval"}
        return {file: self.text(row, prefix) for file, prefix in prefixes.items()}

    def text(self, row: Mapping[str, Any], prefix: str) -> str:
        """Return the card of the weights that have these metrics: eval, or ema for the average."""
        kinds = {"eval": "as trained", "ema": "moving average"}
        found = {name: text for name, text in kinds.items() if f"{name}_top1" in row}
        lines = [
            f"| {text}{' (these)' if name == prefix else ''} | {self._cells(row, name)} |"
            for name, text in found.items()
        ]
        recipe = yaml.safe_dump(self._recipe(), sort_keys=False, allow_unicode=True)
        return CARD_TEXT.format(
            front=self._front_matter(row, prefix),
            title=escaped(self.title),
            model=escaped(_last_name(self.recipe.model)),
            parameters=self.num_parameters / 1e6,
            size=self._size(),
            num_classes=self.num_classes,
            data=escaped(self._data()),
            samples=self.samples,
            columns=" | ".join(self._metrics()),
            rules="|".join(["---:"] * len(self._metrics())),
            rows="\n".join(lines),
            val_samples=self.val_samples,
            validation=escaped(str(self.recipe.validation)),
            epoch=row["epoch"],
            epochs=self.recipe.epochs,
            average=f" The average is in `{EMA}/`." if prefix == "eval" and len(found) > 1 else "",
            classes=self._classes(),
            fence=_fence(recipe),
            recipe=recipe,
        )

    def _front_matter(self, row: Mapping[str, Any], prefix: str) -> str:
        """Return what the Hub reads; its names are fixed."""
        task = "image-classification" if self.recipe.num_frames is None else "video-classification"
        name, split = _slug(self._data()), self.recipe.val_split
        split = self.recipe.train_split if self.recipe.val_fraction else split
        metrics = [
            {"type": "accuracy", "value": round(row[f"{prefix}_{key}"], 4), "name": f"{key}, %"}
            for key in self._metrics()[:-1]
        ]
        result = {
            "task": {"type": task},
            "dataset": {"name": self._data(), "type": name, "split": split},
            "metrics": metrics,
        }
        values = {
            "tags": [task, "timm", "vit_rpe"],
            "library_name": "timm",
            "pipeline_tag": task,
            "datasets": [name],
            "metrics": ["accuracy"],
            "model-index": [{"name": self.title, "results": [result]}],
        }
        return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n\n"

    def _metrics(self) -> list[str]:
        """Name what is shown, the loss last; the top five of five classes would say nothing."""
        return ["top1", "top5", "loss"] if self.num_classes > 5 else ["top1", "loss"]

    def _cells(self, row: Mapping[str, Any], prefix: str) -> str:
        return " | ".join(f"{row[f'{prefix}_{key}']:.4g}" for key in self._metrics())

    def _size(self) -> str:
        sides, frames = " x ".join(map(str, self.sides)), self.recipe.num_frames
        return f"images of {sides}" if frames is None else f"clips of {frames} frames of {sides}"

    def _data(self) -> str:
        """Name the data without their folder, which is nobody's business."""
        return self.recipe.data_source or PurePath(self.recipe.data_dir).name or "data"

    def _recipe(self) -> dict[str, Any]:
        """Return what differs from the defaults, without what belongs to this machine."""
        values = self.recipe.model_dump(exclude_defaults=True, exclude=OF_THIS_MACHINE)
        return {**values, **{key: _last_name(values[key]) for key in PATHS if values.get(key)}}

    def _classes(self) -> str:
        if not self.classes:
            return "Classes have numbers only."
        listed = ", ".join(map(escaped, self.classes[:MOST_CLASSES]))
        return f"Classes: {listed}{', ...' if len(self.classes) > MOST_CLASSES else ''}."


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it, in one line, whatever is in it."""
    line = html.escape(printable(" ".join(text.split())), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", line)


def _last_name(path: str) -> str:
    """Return a name of the Hub or of timm as it is, and of a path only the last part."""
    if path.startswith(LOCAL) or ":" not in path:
        return PurePath(path.removeprefix(LOCAL)).name
    return path


def _fence(text: str) -> str:
    """Return a fence that a text cannot close."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def _slug(name: str) -> str:
    """Return a name as the Hub takes it for a data set."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:96] or "data"
