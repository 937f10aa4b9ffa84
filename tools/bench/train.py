"""A step of the trainer beside a bare PyTorch loop: the same model, the same images in memory.

    python tools/bench/train.py --json train.json
    python tools/bench/train.py --models quickstart --seconds 20

The bare loop is forward, cross-entropy, backward, AdamW, zero_grad, and nothing else: no schedule,
no clipping, no guard, no log. The trainer's step is everything that `train.py` does between two
batches. They take turns, and medians are compared within one run. The bar is a ratio of 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

import vit_rpe  # noqa: F401  registers the models
from tools.bench.harness import (
    add_common,
    aligned,
    bench_parser,
    environment,
    exit_code,
    in_turns,
    judge,
    parsed,
    use_threads,
    write_report,
)
from vit_rpe.cli.command_line import positive_integer
from vit_rpe.data import Batch
from vit_rpe.data.making import Arrays, make_shards
from vit_rpe.training import Recipe, assemble, build_model, start_run

BAR = 1.05
CLASSES = 10
QUICKSTART = {
    "patch_size": 2,
    "embed_dim": 64,
    "depth": 4,
    "num_heads": 4,
    "class_token": False,
    "global_pool": "avg",
}
MODELS: dict[str, dict[str, Any]] = {  # name: keys of a recipe
    "quickstart": {
        "model": "performer_rpe2d_tiny_patch16_224",
        "model_kwargs": QUICKSTART,
        "img_size": 8,
        "batch_size": 64,
    },
    "performer_rpe2d_tiny": {"model": "performer_rpe2d_tiny_patch16_224", "batch_size": 8},
    "vit_tiny": {"model": "vit_tiny_patch16_224", "batch_size": 8},
}
STEPS = 5  # in one turn


class Contest:
    """One model twice: in the trainer, and in a bare loop."""

    def __init__(self, name: str, args: argparse.Namespace, folder: Path):
        keys = {"smoothing": 0.0, "warmup_epochs": 0, "epochs": 10**6, "val_split": None}
        keys.update(MODELS[name], seed=args.seed, device=args.device, workers=0)
        if args.batch:
            keys["batch_size"] = args.batch
        recipe = Recipe(data_dir=_images(folder / name, keys["batch_size"], args.seed), **keys)
        run = start_run(recipe, folder / "run")
        self.trainer = assemble(run)
        self.batch: Batch = next(iter(self.trainer.loader.batches(0, 1)))
        torch.manual_seed(args.seed)
        self.model: Any = build_model(recipe, CLASSES).to(run.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.lr)

    def run_trainer(self) -> None:
        for _ in range(STEPS):
            self.trainer.advance(self.batch, 0.0)

    def run_bare(self) -> None:
        images, labels = self.batch.images, self.batch.labels
        for _ in range(STEPS):
            self.model.train()
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[str, Callable[[], object]]]:
        with contextlib.ExitStack() as stack:
            self.trainer.open_logs(stack)
            yield {"bare": self.run_bare, "trainer": self.run_trainer}


def _images(folder: Path, count: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (count, 32, 32), dtype=np.uint8)
    classes = [str(label) for label in range(CLASSES)]
    make_shards(Arrays(images, draw.integers(0, CLASSES, count), classes), folder, "train")
    return str(folder)


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        contest = Contest(name, args, Path(folder))
        with contest.opened() as calls:
            for call in calls.values():
                call()  # warm up
            times = in_turns(calls, args.seconds, args.device, args.seed, fewest=10)
    medians = {key: median(values) / STEPS for key, values in times.items()}
    pairs = zip(times["trainer"], times["bare"], strict=True)
    return {
        "model": name,
        "bare_ms": 1e3 * medians["bare"],
        "trainer_ms": 1e3 * medians["trainer"],
        "ratio": medians["trainer"] / medians["bare"],
        "ratio_of_turns": median(ours / theirs for ours, theirs in pairs),
        "turns": len(times["bare"]),
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = bench_parser("train", __doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="(all; quick: the first)")
    parser.add_argument("--batch", type=positive_integer, help="samples (default: by model)")
    add_common(
        parser,
        quick="one small model, for a second",
        seconds="for the timed rounds of a model (40; quick: 1)",
    )
    args = parsed(parser, argv)
    args.models = args.models or list(MODELS)[: 1 if args.quick else None]
    args.seconds = args.seconds or (1.0 if args.quick else 40.0)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    use_threads(args.threads)
    rows = [measure(name, args) for name in args.models]
    header = ["model", "bare, ms", "trainer, ms", "ratio", "turns"]
    lines = [
        [
            row["model"],
            *(f"{row[key]:.2f}" for key in ("bare_ms", "trainer_ms")),
            f"{row['ratio']:.3f}",
            str(row["turns"]),
        ]
        for row in rows
    ]
    print(aligned([header, *lines]))
    write_report(args.json, {**environment(args.device), "rows": rows})
    code = exit_code(judge(row["model"], row["ratio"], at_most=BAR) for row in rows)
    print(f"{'FAIL' if code else 'PASS'}: the bar is a ratio of {BAR}")
    return code


if __name__ == "__main__":
    sys.exit(main())
