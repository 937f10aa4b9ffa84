"""Small recipes and shards for the tests, and what a run leaves behind, to compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.torch import load_file

from tests.data.samples import sample, write_shard
from vit_rpe.data.making import Arrays, make_shards

TINY: dict[str, Any] = {
    "model": "performer_rpe2d_tiny_patch16_224",
    "model_kwargs": {
        "patch_size": 4,
        "embed_dim": 16,
        "depth": 2,
        "num_heads": 2,
        "class_token": False,
        "global_pool": "avg",
        "rpe_init": "decay",
    },
    "img_size": 8,
    "num_classes": 10,
    "workers": 0,
    "batch_size": 8,
    "epochs": 3,
    "warmup_epochs": 1,
    "lr": 1e-2,
    "log_interval": 1,
    "seed": 3,
    "max_bad_samples": 0.0,
    "interpolation": "bilinear",
    "report": False,
}
# everything that draws, averages or remembers
RICH = {
    "drop": 0.1,
    "drop_path": 0.2,
    "mixup": 0.4,
    "cutmix": 1.0,
    "aa": "rand-m5",
    "reprob": 0.3,
    "clip_grad": 1.0,
    "model_ema": True,
    "model_ema_decay": 0.9,
    "layer_decay": 0.8,
}


def make_data(folder: Path, train: int = 43, val: int = 21) -> str:
    """Shards of unequal lengths: 43 training samples make 5 steps of 8."""
    for split, count in (("train", train), ("val", val)):
        first = count // 3
        for number, numbers in enumerate((range(first), range(first, count))):
            offset = 1000 * (split == "val")
            write_shard(
                folder / f"x-{split}-{number:03d}.tar", (sample(i + offset) for i in numbers)
            )
    return str(folder)


def make_named(folder: Path, names: list[str], splits: tuple[str, ...] = ("train", "val")) -> str:
    """Shards of a few noisy images with named classes."""
    draw = np.random.default_rng(0)
    for split in splits:
        pixels = draw.integers(0, 256, (24, 8, 8), dtype=np.uint8)
        make_shards(Arrays(pixels, np.arange(24) % len(names), names), folder, split)
    return str(folder)


def write_recipe(path: Path, **values: Any) -> str:
    path.write_text(yaml.safe_dump({**TINY, **values}))
    return str(path)


def tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a checkpoint."""
    return {
        f"{file.relative_to(folder)}:{name}": value
        for file in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(file).items()
    }


def assert_same_run(one: Path, other: Path, names: tuple[str, ...] = ("last", "best")) -> None:
    """Bit-equal weights, averages, optimizer states, metrics, counters and losses."""
    for name in names:
        ours, theirs = (tensors((run / "checkpoints" / name).resolve()) for run in (one, other))
        assert ours.keys() == theirs.keys() and len(ours) > 20
        different = [key for key in ours if not (ours[key] == theirs[key]).all()]
        assert not different, f"{name}: {different[:5]}"
    assert (one / "summary.csv").read_bytes() == (other / "summary.csv").read_bytes()
    ours, theirs = (progress(run) for run in (one, other))
    assert _plain_names(ours) == _plain_names(theirs)
    assert losses(one) == losses(other)
    assert (one / "steps.f64").read_bytes() == (other / "steps.f64").read_bytes()


def progress(run: Path) -> dict[str, Any]:
    state = json.loads((run / "checkpoints" / "last" / "state.json").read_text())
    return state["progress"]["state"]


def _plain_names(state: dict[str, Any]) -> dict[str, Any]:
    """`epoch-0002-2` is `epoch-0002`, written a second time after a kill."""
    ranking = [["-".join(name.split("-")[:2]), score] for name, score in state["ranking"]]
    return {**state, "ranking": ranking}


def losses(run: Path) -> list[tuple[int, float, float, float]]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [
        (line["step"], line["loss"], line["lr"], line["grad_norm"])
        for line in lines
        if line["event"] == "train"
    ]
