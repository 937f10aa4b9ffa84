"""Time and memory of masked attention on each path, beside softmax and unmasked attention.

    python tools/bench/attention.py --json bench.json --plot bench.png
    python tools/bench/attention.py --quick
    python tools/bench/attention.py --cases 56x56:12:64:64 --only sdpa,offset/auto,scan
    python tools/bench/attention.py --cases 28x28:12:64:64 --only sdpa,sdpa+bias,softmax/offset

Contestants take turns, so that a busy moment of the machine hits them all, and medians are
compared within one run. Forward is timed without gradients, forward + backward with gradients to
q, k, v and to the parameters of the mask, which is made anew in every call.

Shapes: L tokens, M features, D value channels; leading dims are batch and heads.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.bench._attention_report import (
    KINDS,
    PATHS,
    case_table,
    plot,
    summarise,
    summary_text,
)
from tools.bench.harness import (
    add_common,
    bench_parser,
    chosen,
    environment,
    in_turns,
    parsed,
    peak_mb,
    timed,
    try_once,
    use_threads,
    write_report,
)
from vit_rpe.attention import (
    AttentionRequest,
    masked_linear_attention,
    masked_softmax_attention,
    plan_attention,
)
from vit_rpe.attention.cost import default_budget
from vit_rpe.attention.paths.product import columns_within
from vit_rpe.attention.plan import PathName
from vit_rpe.cli.command_line import new_file, positive_number
from vit_rpe.features import ReLUFeatures
from vit_rpe.masks import Toeplitz
from vit_rpe.masks.toeplitz import fast_size
from vit_rpe.rpe import ExponentialRPE, GridRPE, OffsetRPE

MASKS: dict[str, Callable[..., GridRPE]] = {
    "offset": OffsetRPE,
    "exp": ExponentialRPE,
    "exp4": partial(ExponentialRPE, terms=4),
}
CASES = (
    "14x14:12:64:64:8,14x14:12:32:32:8,14x14:1:32:32,28x28:12:64:64,28x28:1:32:32,32x32:12:32:32,"
    "32x32:12:16:16,56x56:12:64:64,56x56:12:16:16,56x56:1:32:32,112x112:2:64:64,112x112:1:32:32,"
    "112x112:1:16:16,224x224:1:32:32,224x224:1:16:16"
)
QUICK_CASES = "14x14:12:16:16,28x28:1:32:32,56x56:1:16:16"


@dataclass(frozen=True)
class Case:
    """One shape, written grid:heads:m:d[:batch] on the command line."""

    grid: tuple[int, ...]
    heads: int
    m: int
    d: int
    batch: int = 1

    @property
    def tokens(self) -> int:
        return prod(self.grid)

    @property
    def entries(self) -> int:
        """Entries of the attention matrices of all heads."""
        return self.batch * self.heads * self.tokens**2

    def __str__(self) -> str:
        settings = [self.heads, self.m, self.d] + [self.batch] * (self.batch > 1)
        return ":".join(["x".join(map(str, self.grid)), *map(str, settings)])


@dataclass(frozen=True)
class Contestant:
    """A way to compute attention: `call()` gives (B, H, L, D), the leaves get gradients.

    One without leaves is timed forward only.
    """

    call: Callable[[], Tensor]
    leaves: list[Tensor]


class Inputs:
    """What the contestants of a case share. Softmax has heads of D channels, whatever M is."""

    def __init__(self, case: Case, device: str, seed: int, init: Any = "ones"):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        lead = (case.batch, case.heads, case.tokens)
        self.case = case
        self.q, self.k = ((F.relu(draw(*lead, case.m)) + 1e-3).requires_grad_() for _ in range(2))
        self.queries, self.keys, self.v = (draw(*lead, case.d).requires_grad_() for _ in range(3))
        self.gradient = draw(*lead, case.d)
        self.rpe: dict[str, GridRPE] = {}
        for kind, module in MASKS.items():
            self.rpe[kind] = module(case.grid, case.heads, init=init).to(device)
            with torch.no_grad():
                for parameter in self.rpe[kind].parameters():
                    parameter.add_(0.1 * draw(*parameter.shape))


RELU = ReLUFeatures()

# --- contestants -------------------------------------------------------------------------------


def softmax(x: Inputs) -> Contestant:
    q, k, v = x.queries, x.keys, x.v
    return Contestant(lambda: F.scaled_dot_product_attention(q, k, v), [q, k, v])


def softmax_with_bias(x: Inputs) -> Contestant:
    """A learned bias per offset and head, gathered to L x L as a user would write it."""
    q, k, v = x.queries, x.keys, x.v
    index = offset_index(x.case.grid, v.device)
    table = v.new_zeros(x.case.heads, prod(2 * n - 1 for n in x.case.grid)).requires_grad_()

    def call() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=table[:, index][None])

    return Contestant(call, [q, k, v, table])


def softmax_with_mask(mask: str, x: Inputs) -> Contestant:
    """`masked_softmax_attention`: the same with the mask of a module."""
    q, k, v, rpe = x.queries, x.keys, x.v, x.rpe[mask]
    leaves = [q, k, v, *rpe.parameters()]
    return Contestant(lambda: masked_softmax_attention(q, k, v, rpe()), leaves)


def offset_index(grid: tuple[int, ...], device: torch.device) -> Tensor:
    """The place of each pair's offset in a flat table of offsets, (L, L)."""
    sides = [2 * n - 1 for n in grid]
    places = torch.arange(prod(sides), dtype=torch.float64, device=device)
    return Toeplitz(places.unflatten(0, sides), grid).dense().long()


def linear(x: Inputs) -> Contestant:
    """Linear attention without a mask: two matrix products and the normalizer."""

    def call() -> Tensor:
        return x.q @ (x.k.mT @ x.v) / (x.q @ x.k.sum(-2, keepdim=True).mT)

    return Contestant(call, [x.q, x.k, x.v])


def dense(mask: str, x: Inputs) -> Contestant:
    """The definition, left to autograd."""
    rpe = x.rpe[mask]

    def call() -> Tensor:
        weights = (x.q @ x.k.mT) * rpe().dense()
        return weights @ x.v / weights.sum(-1, keepdim=True)

    return Contestant(call, [x.q, x.k, x.v, *rpe.parameters()])


def masked(mask: str, path: PathName, x: Inputs) -> Contestant:
    rpe = x.rpe[mask]

    def call() -> Tensor:
        return masked_linear_attention(x.q, x.k, x.v, rpe(), features=RELU, path=path)

    return Contestant(call, [x.q, x.k, x.v, *rpe.parameters()])


def transforms(x: Inputs) -> Contestant:
    """The bare FFTs of the product path: its columns there and back, in its chunks."""
    grid, d = x.case.grid, len(x.case.grid)
    sizes = [fast_size(2 * n - 1) for n in grid]
    budget = default_budget("product", x.q.device.type, x.case.tokens, x.q.dtype)
    at_once = columns_within(budget, x.q)
    columns = x.case.m * (x.case.d + 1)
    chunk = torch.ones(x.case.batch * x.case.heads, at_once, *grid, device=x.v.device)

    def call() -> Tensor:
        out = chunk
        for first in range(0, columns, at_once):
            out = torch.fft.rfft(chunk[:, : columns - first], n=sizes[-1], dim=-1)
            for axis in range(d - 2, -1, -1):
                out = torch.fft.fft(out, n=sizes[axis], dim=axis - d)
            for axis in range(d - 1):
                out = torch.fft.ifft(out, dim=axis - d).narrow(axis - d, 0, grid[axis])
            out = torch.fft.irfft(out, n=sizes[-1], dim=-1)
        return out

    return Contestant(call, [])


def _contestants() -> dict[str, Callable[[Inputs], Contestant]]:
    makers = {"sdpa": softmax, "sdpa+bias": softmax_with_bias, "linear": linear}
    makers |= {f"softmax/{mask}": partial(softmax_with_mask, mask) for mask in ("offset", "exp")}
    makers |= {"fft": transforms, "exp4/scan": partial(masked, "exp4", "scan")}
    for mask, paths in PATHS.items():
        makers[f"{mask}/dense"] = partial(dense, mask)
        makers |= {f"{mask}/{path}": partial(masked, mask, path) for path in (*paths, "auto")}
    return makers


CONTESTANTS = _contestants()


def chosen_path(name: str, x: Inputs) -> str | None:
    """The path that `auto` takes."""
    mask, _, path = name.partition("/")
    if path != "auto":
        return None
    return plan_attention(AttentionRequest.of(x.q, x.k, x.v, x.rpe[mask](), features=RELU)).path


# --- what is affordable ------------------------------------------------------------------------

# Bytes at the peak of forward + backward: (per entry of all heads' matrices, per entry of one).
MATRIX_BYTES = {"sdpa+bias": (14, 24), "offset/dense": (26, 24), "exp/dense": (28, 24)}


def why_not(name: str, case: Case, speed: float, args: argparse.Namespace) -> str | None:
    """The reason to skip a contestant, known beforehand.

    Where all is one long kernel no alarm can interrupt it: six matrix products are the least.
    """
    per_head, shared = MATRIX_BYTES.get(name, (0, 0))
    gigabytes = (per_head * case.entries + shared * case.tokens**2) / 1e9
    if gigabytes > args.max_gb:
        return f"needs {gigabytes:.1f} GB"
    if name == "sdpa" or name in MATRIX_BYTES:
        if 6 * case.entries * (case.m + case.d) / speed > args.limit:
            return f"over {args.limit:g} s"
    return None


def matmul_speed(device: str) -> float:
    """Floating-point operations per second of a large matrix product."""
    x = torch.ones(1024, 1024, device=device)
    return 2 * 1024**3 / min(timed(lambda: x @ x, device) for _ in range(5))


# --- measuring ---------------------------------------------------------------------------------


@torch.no_grad()
def forward(contestant: Contestant) -> Tensor:
    return contestant.call()


def both(contestant: Contestant, gradient: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(contestant.call(), contestant.leaves, gradient)


def measure(case: Case, names: list[str], speed: float, args: argparse.Namespace) -> dict[str, Any]:
    """All contestants of a case: medians, ratios to sdpa, peak memory."""
    x = Inputs(case, args.device, args.seed, args.init)
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name in names:
        row = rows[name] = {"path": chosen_path(name, x), "peak_mb": None}
        row["skipped"] = why_not(name, case, speed, args)
        if row["skipped"]:
            continue
        contestant = CONTESTANTS[name](x)
        trials = (partial(forward, contestant), partial(both, contestant, x.gradient))
        for kind, call in zip(KINDS, trials, strict=True):
            if kind == "both" and not contestant.leaves:
                break
            if not try_once(call, args.limit, args.device):
                row["skipped"] = f"{kind} over {args.limit:g} s"
                break
            calls[name, kind] = call
        else:
            row["peak_mb"] = peak_mb(trials[-1], args.device)
    times = in_turns(calls, args.seconds, args.device, args.seed)
    for name, kind in product(names, KINDS):
        samples, base = times.get((name, kind)), times.get(("sdpa", kind))
        rows[name][f"{kind}_ms"] = 1e3 * median(samples) if samples else None
        rows[name][f"{kind}_ratio"] = median(samples) / median(base) if samples and base else None
    rounds = max(map(len, times.values()), default=0)
    settings = {"grid": case.grid, "heads": case.heads, "m": case.m, "d": case.d}
    settings |= {"batch": case.batch, "tokens": case.tokens}
    return {"case": str(case), **settings, "rounds": rounds, "contestants": rows}


# --- command line ------------------------------------------------------------------------------


def _cases(text: str) -> list[Case]:
    cases = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+(?:x\d+)*):(\d+):(\d+):(\d+)(?::(\d+))?", part.strip())
        numbers = [int(n) for n in re.findall(r"\d+", part)]
        if found is None or min(numbers) < 1:
            raise argparse.ArgumentTypeError(
                f"wanted cases like 14x14:12:64:64 (grid:heads:m:d[:batch]), got {part!r}"
            )
        grid = tuple(int(n) for n in found[1].split("x"))
        cases.append(Case(grid, *numbers[len(grid) :]))
    return list(dict.fromkeys(cases))


def _names(text: str) -> list[str]:
    """Contestants by name, or all of one mask or path: `offset/product`, `offset`, `product`."""
    return chosen(text, list(CONTESTANTS))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = bench_parser("attention", __doc__)
    add = parser.add_argument
    add("--cases", type=_cases, help=f"grid:heads:m:d[:batch],... (default {CASES})")
    add("--only", type=_names, default=list(CONTESTANTS), help="contestants, masks or paths")
    add("--limit", type=positive_number, default=30.0, help="seconds that a call may take")
    add("--max-gb", type=positive_number, help="for L x L matrices (8; quick: 0.4)")
    add("--init", choices=("ones", "decay"), default="ones", help="start of the masks")
    add("--plot", type=new_file, help="draw time against tokens to this file")
    add_common(
        parser,
        quick="a few small cases, under a minute",
        seconds="for the timed rounds of a case (60; quick: 6)",
    )
    args = parsed(parser, argv)
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("argument --plot: needs matplotlib (pip install 'vit_rpe[report]')")
    args.cases = args.cases or _cases(QUICK_CASES if args.quick else CASES)
    args.seconds = args.seconds or (6.0 if args.quick else 60.0)
    args.max_gb = args.max_gb or (0.4 if args.quick else 8.0)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    use_threads(args.threads)
    report = environment(args.device)
    kept = ("only", "seconds", "limit", "max_gb", "init", "device", "seed")
    report["settings"] = {name: getattr(args, name) for name in kept}
    print(f"torch {torch.__version__}, {args.device}, {report['threads']} threads\n")
    speed = matmul_speed(args.device)
    results = []
    for case in args.cases:
        results.append(measure(case, args.only, speed, args))
        print(case_table(results[-1]), flush=True)
    report |= {"cases": results, "summary": summarise(results)}
    print(summary_text(report["summary"]))
    write_report(args.json, report)
    if args.plot:
        plot(report, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
