"""Training steps and inference of the models, beside timm's ViT of the same size.

    python tools/bench/models.py --sizes small --img-size 224 --json models.json
    python tools/bench/models.py --sizes tiny,small --img-size 224,448,896 --batch 2
    python tools/bench/models.py --quick

A training step is forward, cross-entropy, backward and AdamW; inference is a forward pass without
gradients. Contestants take turns, and medians are compared within one run. Peak memory is what a
call takes above the models themselves, their gradients counted and AdamW's state not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

import vit_rpe  # noqa: F401  registers the models
from tools.bench.harness import (
    add_common,
    aligned,
    bench_parser,
    chosen,
    environment,
    exit_code,
    in_turns,
    number,
    parsed,
    peak_mb,
    try_once,
    use_threads,
    verdict,
    write_report,
)
from vit_rpe.cli.command_line import positive_integer, positive_number

SIZES = ("tiny", "small", "base")
PATCH, CLASSES = 16, 1000
KINDS = ("train", "infer")
BASE = "vit"
CONTESTANTS: dict[str, tuple[str, dict[str, str]]] = {
    BASE: ("vit_{}_patch16_224", {}),
    "performer": ("performer_{}_patch16_224", {}),
    "performer_rpe2d/offset": ("performer_rpe2d_{}_patch16_224", {"rpe": "offset"}),
    "performer_rpe2d/exponential": ("performer_rpe2d_{}_patch16_224", {"rpe": "exponential"}),
    "vit_rpe2d/offset": ("vit_rpe2d_{}_patch16_224", {"rpe": "offset"}),
    "vit_rpe2d/exponential": ("vit_rpe2d_{}_patch16_224", {"rpe": "exponential"}),
}
TARGET = {"contestant": "performer_rpe2d/offset", "size": "small", "img_size": 224, "ratio": 1.25}


@dataclass(frozen=True)
class Case:
    """What all contestants of a table share; a depth of None is the model's own."""

    size: str
    img_size: int
    batch: int
    depth: int | None = None

    @property
    def patches(self) -> int:
        return (self.img_size // PATCH) ** 2


class Contestant:
    """A model, its optimizer and a batch."""

    def __init__(self, name: str, case: Case, args: argparse.Namespace):
        torch.manual_seed(args.seed)
        self.model = build(name, case, args.init).to(args.device)
        self.images = torch.randn(case.batch, 3, case.img_size, case.img_size, device=args.device)
        self.labels = torch.randint(CLASSES, (case.batch,), device=args.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.autocast = partial(torch.autocast, args.device, torch.bfloat16, enabled=args.amp)
        self.call: Any = torch.compile(self.model) if args.compile else self.model

    def train(self) -> Tensor:
        """One training step; returns the loss."""
        self.optimizer.zero_grad()
        with self.autocast():
            loss = F.cross_entropy(self.call(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def infer(self) -> Tensor:
        with self.autocast():
            return self.call(self.images)

    def step(self, kind: str) -> Callable[[], Tensor]:
        """The call of one kind, the model in the mode that it needs."""
        self.model.train(kind == "train")
        return self.train if kind == "train" else self.infer


def build(name: str, case: Case, init: str) -> nn.Module:
    pattern, options = CONTESTANTS[name]
    settings: dict[str, Any] = {"img_size": case.img_size, "num_classes": CLASSES, **options}
    if case.depth is not None:
        settings["depth"] = case.depth
    if "rpe" in options:
        settings["rpe_init"] = init
    return timm.create_model(pattern.format(case.size), **settings)


def label(name: str, size: str) -> str:
    pattern, options = CONTESTANTS[name]
    return " ".join([pattern.format(size), *(f"{key}={value}" for key, value in options.items())])


# --- measuring ---------------------------------------------------------------------------------

# Softmax with a mask keeps L x L matrices for the backward pass: so many numbers for an entry of
# each sample's heads, and for an entry of the mask's heads.
KEPT = (1, 6)
HEADS = {"tiny": 3, "small": 6, "base": 12}


def why_not(name: str, case: Case, max_gb: float) -> str | None:
    """The reason to skip a contestant, known beforehand."""
    if not name.startswith("vit_rpe2d"):
        return None
    entries = (case.depth or 12) * HEADS[case.size] * (case.patches + 1) ** 2
    gigabytes = 4 * entries * (KEPT[0] * case.batch + KEPT[1]) / 1e9
    return f"needs about {gigabytes:.0f} GB" if gigabytes > max_gb else None


def measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """All contestants of a case: medians, ratios to timm's model, peak memory."""
    rows: dict[str, dict[str, Any]] = {}
    contestants: dict[str, Contestant] = {}
    for name in args.only:
        rows[name] = {"model": label(name, case.size), "parameters": None}
        rows[name]["skipped"] = why_not(name, case, args.max_gb)
        if rows[name]["skipped"] is None:
            contestants[name] = Contestant(name, case, args)
            parameters = contestants[name].model.parameters()
            rows[name]["parameters"] = sum(p.numel() for p in parameters)
    rounds = {kind: _measure_kind(kind, contestants, rows, args) for kind in KINDS}
    settings = {"size": case.size, "img_size": case.img_size, "batch": case.batch}
    settings |= {"depth": case.depth, "patches": case.patches}
    return {**settings, "rounds": rounds, "contestants": rows}


def _measure_kind(
    kind: str,
    contestants: dict[str, Contestant],
    rows: dict[str, dict[str, Any]],
    args: argparse.Namespace,
) -> int:
    """Fills in the columns of one kind and returns the number of rounds."""
    for row in rows.values():
        row |= dict.fromkeys((f"{kind}_ms", f"{kind}_ratio", f"{kind}_peak_mb"))
    calls: dict[str, Callable[[], object]] = {}
    for name, contestant in contestants.items():
        call = contestant.step(kind)
        if args.compile:
            call()  # compiling may take longer than any limit
        if try_once(call, args.limit, args.device):
            calls[name] = call
            rows[name][f"{kind}_peak_mb"] = peak_mb(call, args.device)
        else:
            rows[name]["skipped"] = f"{kind} over {args.limit:g} s"
    seconds = args.seconds / len(KINDS)
    times = in_turns(calls, seconds, args.device, args.seed, fewest=3)
    for name, samples in times.items():
        rows[name][f"{kind}_ms"] = 1e3 * median(samples)
        if BASE in times:
            rows[name][f"{kind}_ratio"] = median(samples) / median(times[BASE])
    return max(map(len, times.values()), default=0)


# --- what is shown -----------------------------------------------------------------------------


def case_table(result: dict[str, Any]) -> str:
    depth = "" if result["depth"] is None else f", depth {result['depth']}"
    rounds = ", ".join(f"{result['rounds'][kind]} {kind}" for kind in KINDS)
    side = result["img_size"]
    title = (
        f"{result['size']}, {side} x {side} = {result['patches']:,} patches, "
        f"batch {result['batch']}{depth}  (rounds: {rounds})"
    )
    head = ["model", "M params"]
    head += [f"{kind} {unit}" for kind in KINDS for unit in ("ms", "/ vit", "peak MB")] + ["note"]
    body = [_table_row(row) for row in result["contestants"].values()]
    return f"{title}\n{aligned([head, *body])}\n"


def _table_row(row: dict[str, Any]) -> list[str]:
    millions = None if row["parameters"] is None else row["parameters"] / 1e6
    columns = [f"{kind}_{unit}" for kind in KINDS for unit in ("ms", "ratio", "peak_mb")]
    numbers = [number(millions), *(number(row[column]) for column in columns)]
    return [row["model"], *numbers, row["skipped"] or ""]


def target(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How the training step of the small masked model compares with the aim, if it was measured."""
    for result in results:
        same = all(result[key] == TARGET[key] for key in ("size", "img_size"))
        row = result["contestants"].get(TARGET["contestant"], {})
        if same and result["depth"] is None and row.get("train_ratio"):
            met = row["train_ratio"] <= TARGET["ratio"]
            return {**TARGET, "measured": row["train_ratio"], "met": met}
    return None


def target_text(goal: dict[str, Any]) -> str:
    return (
        f"Aim: a training step of {label(goal['contestant'], goal['size'])} at {goal['img_size']} "
        f"within {goal['ratio']} x {label(BASE, goal['size'])}: "
        f"{goal['measured']:.2f} x, {verdict(goal)}"
    )


# --- command line ------------------------------------------------------------------------------


def _only(text: str) -> list[str]:
    return chosen(text, list(CONTESTANTS))


def _sizes(text: str) -> list[str]:
    sizes = [part.strip() for part in text.split(",")]
    if not set(sizes) <= set(SIZES):
        raise argparse.ArgumentTypeError(f"wanted sizes out of {', '.join(SIZES)}, got {text!r}")
    return list(dict.fromkeys(sizes))


def _img_sizes(text: str) -> list[int]:
    if re.fullmatch(r"\d+(,\d+)*", text):
        sizes = [int(part) for part in text.split(",")]
        if all(size and size % PATCH == 0 for size in sizes):
            return list(dict.fromkeys(sizes))
    raise argparse.ArgumentTypeError(f"wanted multiples of {PATCH} like 224,448, got {text!r}")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = bench_parser("models", __doc__)
    add = parser.add_argument
    add(
        "--sizes", "--size", type=_sizes, help="out of tiny,small,base (default small; quick: tiny)"
    )
    add("--img-size", type=_img_sizes, default=[224], help="one or more sides (default 224)")
    add("--batch", type=positive_integer, help="images in a batch (8; quick: 2)")
    add("--depth", type=positive_integer, help="blocks (default: the model's; quick: 2)")
    add("--only", type=_only, default=list(CONTESTANTS), help="contestants, models or masks")
    add("--init", choices=("ones", "decay"), default="ones", help="start of the masks")
    add("--amp", action="store_true", help="bfloat16 autocast")
    add("--compile", action="store_true", help="torch.compile every model")
    add("--limit", type=positive_number, default=120.0, help="seconds that a call may take")
    add("--max-gb", type=positive_number, default=8.0, help="for L x L matrices")
    add_common(
        parser,
        quick="a tiny, shallow case, under a minute",
        seconds="for the timed rounds of a case (120; quick: 10)",
    )
    args = parsed(parser, argv)
    args.sizes = args.sizes or (["tiny"] if args.quick else ["small"])
    args.batch = args.batch or (2 if args.quick else 8)
    args.depth = args.depth or (2 if args.quick else None)
    args.seconds = args.seconds or (10.0 if args.quick else 120.0)
    return args


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for size in args.sizes:
        for side in args.img_size:
            yield Case(size, side, args.batch, args.depth)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    use_threads(args.threads)
    kept = ("only", "init", "amp", "compile", "seconds", "limit", "max_gb")
    report = environment(args.device)
    report["settings"] = {name: getattr(args, name) for name in (*kept, "device", "seed")}
    precision = "bfloat16 autocast" if args.amp else "float32"
    compiled = ", compiled" if args.compile else ""
    print(
        f"torch {torch.__version__}, timm {timm.__version__}, {args.device}, "
        f"{report['threads']} threads, {precision}{compiled}\n"
    )
    results = []
    for case in cases(args):
        results.append(measure(case, args))
        print(case_table(results[-1]), flush=True)
    goal = target(results)
    if goal:
        print(target_text(goal))
    write_report(args.json, {**report, "cases": results, "target": goal})
    return exit_code([goal] if goal else [])


if __name__ == "__main__":
    sys.exit(main())
