"""Launches, bytes and time on paper of training steps on a GPU that is not there.

    python tools/bench/roofline.py --json roofline.json
    python tools/bench/roofline.py --layers --operators
    python tools/bench/roofline.py --models performer_rpe2d:rpe=exponential --img-size 384 --batch 8
    python tools/bench/roofline.py --before old.json

A step is forward, cross-entropy and backward on fake CUDA tensors, in bfloat16 autocast; every
operator is a kernel that reads its inputs and writes its outputs. Its time on a GPU is the largest
of bytes over bandwidth, operations over peak and the time between launches, by the constants in
`fake_cuda/gpus.py`. Real steps are longer than such sums. "kept" is what a forward pass leaves for
the backward pass. Layers are attention layers of ViT-B without their linear layers.

The bars hold bytes of layers against those of 2026-11-18, before matrix products took bfloat16
operands, and what a model keeps against timm's ViT; with the fused kernels (without
VIT_RPE_TRITON=0), which keep less, also the launches of a step at 224 pixels.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe
os.environ["VIT_RPE_PATH_COSTS"] = "default"  # nothing can be measured

import timm
import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from torch import nn

import vit_rpe  # noqa: F401  registers the models
from tools.bench.fake_cuda import (
    GPUS,
    Counter,
    DriverError,
    cuda_fakes,
    faked,
    leave_after,
    operators,
    summed,
    use_driver,
)
from tools.bench.fake_cuda.before import BEFORE
from tools.bench.fake_cuda.fused import register as register_fused
from tools.bench.harness import (
    aligned,
    bench_parser,
    environment,
    exit_code,
    judge,
    number,
    positive_integers,
    verdict,
    write_report,
)
from vit_rpe.cli.command_line import fail, new_file
from vit_rpe.layers import MaskedLinearAttention, MaskedSoftmaxAttention
from vit_rpe.rpe import ExponentialRPE, OffsetRPE

BASE = "vit_base_patch16_224"
MODELS = [BASE, "performer_rpe2d_base_patch16_224"]
# ViT-B's heads; what follows a name are tokens a side, prefix tokens and batch
DIM, HEADS = 768, 12
LAYERS = ("timm", "offset", "exponential", "softmax/offset")
LAYER_CASES = ((14, 0, 64), (14, 1, 64), (14, 0, 128), (28, 0, 32), (28, 1, 32))
BARS = {"bytes": 0.5, "kept": 1.1}
FUSED_BARS = {"kept": 1.02, "launches": 1.12}


@dataclass(frozen=True)
class Count:
    """What was counted of a case."""

    counter: Counter
    kept: int

    def report(self, drop: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the sums, by phase and by operator, without the operators to `drop`."""
        rows = [row for row in self.counter.launches if row.name not in drop]
        seconds = {f"{name}_ms": 1e3 * gpu.seconds(rows) for name, gpu in GPUS.items()}
        phases = ("forward", "backward")
        return {
            **summed(rows),
            "kept": self.kept,
            **seconds,
            "waits": len(self.counter.waits),
            "phases": {name: summed(r for r in rows if r.phase == name) for name in phases},
            "operators": operators(rows),
        }


# --- models ------------------------------------------------------------------------------------


def build(spec: str, img_size: int) -> nn.Module:
    """Make the model that a text names: `name` or `name:option=value:option=value`."""
    name, *texts = spec.split(":")
    options = {key: _value(value) for key, _, value in (text.partition("=") for text in texts)}
    options = {"class_token": False, "global_pool": "avg", "drop_path_rate": 0.1, **options}
    if options["class_token"]:
        options.setdefault("global_pool", "token")
    return timm.create_model(name, img_size=img_size, **options)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def count_model(spec: str, img_size: int, batch: int, amp: bool = True) -> Count:
    """Count a training step of a model."""
    model = build(spec, img_size).train()
    with cuda_fakes():
        faked(model)
        images = torch.empty(batch, 3, img_size, img_size, device="cuda")
        labels = torch.empty(batch, dtype=torch.int64, device="cuda")
        with Counter() as counter:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = F.cross_entropy(model(images), labels)
            kept = _kept(counter)
            counter.phase = "backward"
            loss.backward()
    return Count(counter, kept)


def _kept(counter: Counter) -> int:
    gc.collect()
    return counter.kept_bytes()


# --- layers ------------------------------------------------------------------------------------


def layer(kind: str, side: int, prefix: int) -> nn.Module:
    """Make one of the attention layers of `LAYERS`, or `path/mask`."""
    if kind == "timm":
        return Attention(DIM, HEADS, qkv_bias=True)
    path, _, mask = kind.rpartition("/")
    grid = (side, side)
    rpe = {"offset": OffsetRPE, "exponential": ExponentialRPE}[mask](grid, HEADS)
    options: dict[str, Any] = {"rpe": rpe, "num_prefix_tokens": prefix, "qkv_bias": True}
    if path == "softmax":
        return MaskedSoftmaxAttention(DIM, HEADS, **options)
    options |= {"path": path} if path else {}
    return MaskedLinearAttention(DIM, HEADS, **options)


def count_layer(kind: str, side: int, prefix: int, batch: int, amp: bool = True) -> Count:
    """Count the forward and backward pass of an attention layer of ViT-B."""
    module = layer(kind, side, prefix)
    dtype = torch.bfloat16 if amp else torch.float32
    with cuda_fakes():
        faked(module)
        shape = (batch, side**2 + prefix, DIM)
        x = torch.empty(shape, device="cuda", dtype=dtype, requires_grad=True)
        with Counter() as counter:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                y = module(x)
            kept = _kept(counter)
            counter.phase = "backward"
            y.backward(torch.empty_like(y))
    return Count(counter, kept)


LINEAR = ("aten::addmm", "aten::mm")  # the linear layers

# --- cases -------------------------------------------------------------------------------------

Row = dict[str, Any]


def layer_rows(kinds: list[str], cases: list[tuple[int, int, int]], amp: bool) -> list[Row]:
    """Count the layers of each case, timm's first."""
    rows = []
    for side, prefix, batch in cases:
        for kind in kinds:
            found = count_layer(kind, side, prefix, batch, amp)
            name = f"{kind}, {side}x{side}+{prefix}, batch {batch}"
            case = {"name": name, "kind": kind, "tokens": side**2 + prefix, "batch": batch}
            rows.append({**case, **found.report(drop=LINEAR)})
    return rows


def model_rows(specs: list[str], sides: list[int], batches: list[int], amp: bool) -> list[Row]:
    """Count the models at each size, with as many batches as sizes, or one for all."""
    batches = batches * len(sides) if len(batches) == 1 else batches
    rows = []
    for side, batch in zip(sides, batches, strict=True):
        for spec in specs:
            found = count_model(spec, side, batch, amp)
            name = f"{spec}, {side} pixels, batch {batch}"
            case = {"name": name, "kind": spec, "img_size": side, "batch": batch}
            rows.append({**case, **found.report()})
    return rows


def table(rows: list[Row], gpus: list[str], before: dict[str, int]) -> str:
    """The rows as a table; times also relative to the first row of the same size."""
    head = ["", "launches", "GB", "/ before", "kept GB", "TFLOP", "waits"]
    head += [text for gpu in gpus for text in (f"{gpu} ms", "/ timm")]
    body = []
    for row in rows:
        base = _base(row, rows)
        old = before.get(row["name"])
        cells = [row["name"], f"{row['launches']:,}", number(row["bytes"] / 1e9)]
        cells += [number(row["bytes"] / old if old else None), number(row["kept"] / 1e9)]
        cells += [number(row["flops"] / 1e12), str(row["waits"])]
        for gpu in gpus:
            ms = row[f"{gpu}_ms"]
            cells += [number(ms), number(ms / base[f"{gpu}_ms"] if base else None)]
        body.append(cells)
    return aligned([head, *body])


def _base(row: Row, rows: list[Row]) -> Row | None:
    """timm's row of the same case."""
    same = [r for r in rows if row["name"].removeprefix(row["kind"]) in r["name"]]
    return next((r for r in same if r["kind"] in ("timm", BASE)), None)


def operator_table(row: Row) -> str:
    head = ["operator", "launches", "GB", "GFLOP"]
    body = [
        [name, f"{sums['launches']:,}", number(sums["bytes"] / 1e9), number(sums["flops"] / 1e9)]
        for name, sums in row["operators"].items()
    ]
    return f"{row['name']}\n{aligned([head, *body])}"


def bars(layers: list[Row], models: list[Row]) -> list[dict[str, Any]]:
    """Hold the bytes of offset layers against those before, models against timm's."""
    fused = os.environ.get("VIT_RPE_TRITON") != "0"
    limits = BARS | (FUSED_BARS if fused else {})
    judged = []
    for row in layers:
        old = BEFORE.get(row["name"])
        if row["kind"] == "offset" and old is not None:
            aim = f"bytes of {row['name']} / before"
            judged.append(judge(aim, row["bytes"] / old, at_most=limits["bytes"]))
    for row in models:
        base = _base(row, models)
        if row["kind"] != MODELS[1] or base is None:
            continue
        aim = f"kept by {row['name']} / timm"
        judged.append(judge(aim, row["kept"] / base["kept"], at_most=limits["kept"]))
        if fused and row["img_size"] == 224:
            aim = f"launches of {row['name']} / timm"
            ratio = row["launches"] / base["launches"]
            judged.append(judge(aim, ratio, at_most=limits["launches"]))
    return judged


# --- command line ------------------------------------------------------------------------------


def _cases(text: str) -> list[tuple[int, int, int]]:
    """Read cases like 14+1:64, tokens a side, prefix tokens and batch."""
    cases = []
    for part in text.split(","):
        side, _, batch = part.partition(":")
        side, _, prefix = side.partition("+")
        if not (side.isdigit() and batch.isdigit() and (prefix or "0").isdigit()):
            raise argparse.ArgumentTypeError(f"wanted side+prefix:batch like 14+1:64, got {part!r}")
        cases.append((int(side), int(prefix or 0), int(batch)))
    return cases


def _gpus(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(GPUS):
        raise argparse.ArgumentTypeError(f"wanted some of {', '.join(GPUS)}, got {text!r}")
    return names


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = bench_parser("roofline", __doc__)
    add = parser.add_argument
    add("--models", nargs="*", default=MODELS, metavar="NAME[:KEY=VALUE]", help="of timm, or ours")
    add("--img-size", type=positive_integers, default=[224, 448], help="sides (224,448)")
    add("--batch", type=positive_integers, default=[128, 32], help="of each side, or one (128,32)")
    add("--layers", nargs="*", default=list(LAYERS), help="kinds of layers, [path/]mask")
    add("--layer-cases", type=_cases, default=list(LAYER_CASES), help="side+prefix:batch, ...")
    add("--gpus", type=_gpus, default=list(GPUS), help=f"out of {','.join(GPUS)}")
    add("--float32", action="store_true", help="without autocast")
    add("--tf32", action="store_true", help="let float32 products use TF32")
    add("--operators", action="store_true", help="sums of each operator, too")
    add("--before", type=argparse.FileType(), help="the JSON of an earlier run, to compare with")
    add("--json", type=new_file, help="write all counts to this file")
    args = parser.parse_args(argv)
    if len(args.batch) not in (1, len(args.img_size)):
        parser.error(f"argument --batch: {len(args.batch)} batches for {len(args.img_size)} sizes")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        use_driver()
    except DriverError as error:
        fail("bench/roofline", error)
    register_fused()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    amp = not args.float32
    before = {} if args.float32 else BEFORE
    if args.before is not None:
        old = json.load(args.before)
        before = {row["name"]: row["bytes"] for row in (*old["layers"], *old["models"])}
    layers = layer_rows(args.layers, args.layer_cases, amp)
    models = model_rows(args.models, args.img_size, args.batch, amp)
    for title, rows in (("Attention layers", layers), ("Training steps", models)):
        if rows:
            print(f"{title}\n{table(rows, args.gpus, before)}\n")
    if args.operators:
        print("\n\n".join(operator_table(row) for row in (*layers, *models)))
    judged = bars(layers, models) if amp else []
    for bar in judged:
        print(f"{bar['aim']}: {bar['measured']:.3f}, at most {bar['bar']}: {verdict(bar)}")
    report = {**environment("cpu"), "layers": layers, "models": models, "bars": judged}
    write_report(args.json, report)
    return exit_code(judged)


if __name__ == "__main__":
    leave_after(main)
