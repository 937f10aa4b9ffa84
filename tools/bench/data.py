"""Speed, memory, start-up and bytes read of the loader, beside timm's and plain webdataset's.

    python tools/bench/data.py --json data.json
    python tools/bench/data.py --only speed --workers 2 --rounds 5
    python tools/bench/data.py --quick

- speed: images per second through timm's training transform, on the same shards of JPEGs that the
  tool makes, with the same workers. Contestants take turns; medians and ratios are of one run. Each
  starts anew in every round, and the clock runs after its first batches.
- memory: of all processes of the loader at the beginning and the end of many small samples.
- startup: from an address of 10,000 shards with an index to the first batch of the plan.
- bytes: what the process asked of the system, over the bytes of the samples themselves.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import torch
import webdataset as wds
from PIL import Image, ImageFilter
from timm.data import create_dataset, create_loader  # pyright: ignore[reportPrivateImportUsage]
from timm.data.transforms_factory import create_transform
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.bench.harness import (
    add_common,
    bench_parser,
    chosen,
    environment,
    parsed,
    write_report,
)
from vit_rpe.cli.command_line import positive_integer
from vit_rpe.data import ImageTransform, Loader, Plan, SampleReader, open_shards
from vit_rpe.data.making import Arrays, ImagePreparation, Item, make_shards
from vit_rpe.data.shards import Info, Row, SplitInfo, as_table, index_name, write_table

SHARDS, RANKS, WORKERS = 10_000, 1024, 8  # of the start-up and the plan


class Pictures:
    """JPEGs that look like photographs to a decoder: smooth colours, some edges, some noise."""

    classes = tuple(str(i) for i in range(10))

    def __init__(self, count: int, side: int, seed: int):
        self.count, self.side, self.seed = count, side, seed

    def __len__(self) -> int:
        return self.count

    def item(self, i: int) -> Item:
        draw = np.random.default_rng((self.seed, i))
        coarse = draw.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((self.side, self.side), Image.Resampling.BICUBIC)
        noise = draw.integers(0, 256, (self.side, self.side, 3), dtype=np.uint8)
        soft = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1.5))
        stream = io.BytesIO()
        Image.blend(image, soft, 0.3).save(stream, format="JPEG", quality=90)
        return Item("", int(draw.integers(10)), "jpg", stream.getvalue())

    def fingerprint(self) -> str:
        return f"pictures {self.count} {self.side} {self.seed}"


# --- contestants: each gives endless batches of images ------------------------------------------


def ours(folder: str, args: argparse.Namespace) -> Iterator[Any]:
    shards = open_shards(folder, "train")
    plan = Plan(shards.lengths, args.batch, seed=args.seed)
    transform = ImageTransform(args.img_size, training=True)
    for batch in Loader(shards, plan, transform, workers=args.workers).batches(0, 1 << 30):
        yield batch.images


def timm_loader(folder: str, args: argparse.Namespace, prefetcher: bool) -> Iterator[Any]:
    dataset: Any = create_dataset(
        "wds/",
        root=folder,
        split="train",
        is_training=True,
        batch_size=args.batch,
        seed=args.seed,
    )
    loader: Any = create_loader(
        dataset,
        input_size=(3, args.img_size, args.img_size),
        batch_size=args.batch,
        is_training=True,
        num_workers=args.workers,
        use_prefetcher=prefetcher,
        color_jitter=0.4,
        interpolation="bilinear",
        device=torch.device("cpu"),
        pin_memory=False,
    )
    while True:
        for images, _ in loader:
            yield images


def plain_webdataset(folder: str, args: argparse.Namespace) -> Iterator[Any]:
    urls = sorted(str(path) for path in Path(folder).glob("train-*.tar"))
    dataset: Any = wds.WebDataset(urls, shardshuffle=100, seed=args.seed)  # pyright: ignore
    transform = create_transform(args.img_size, is_training=True)
    dataset = dataset.shuffle(1000, initial=256).decode("pilrgb").to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(transform, int).batched(args.batch, partial=False).repeat()
    for images, _ in DataLoader(dataset, batch_size=None, num_workers=args.workers):
        yield images


CONTESTANTS: dict[str, Callable[[str, argparse.Namespace], Iterator[Any]]] = {
    "vit_rpe": ours,
    "timm": partial(timm_loader, prefetcher=False),
    "timm/prefetcher": partial(timm_loader, prefetcher=True),
    "webdataset": plain_webdataset,
}


# --- measurements ------------------------------------------------------------------------------


def speed(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    preparation = ImagePreparation(samples_per_shard=args.images // 8)
    pictures = Pictures(args.images, args.img_size, args.seed)
    make_shards(pictures, folder, "train", preparation, workers=2)
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    order, shuffle = list(rates), random.Random(args.seed).shuffle
    for _ in range(args.rounds):
        shuffle(order)
        for name in order:
            rates[name].append(rate(CONTESTANTS[name](str(folder), args), args))
    medians = {name: median(values) for name, values in rates.items()}
    ratios = {name: medians["vit_rpe"] / value for name, value in medians.items()}
    return {"images_per_second": medians, "rounds": rates, "vit_rpe_over": ratios}


def rate(batches: Iterator[Any], args: argparse.Namespace) -> float:
    """Images per second, after as many batches as the workers keep ready."""
    steps = max(args.images // args.batch, 1)
    for _ in islice(batches, 3 * args.workers):
        pass
    start = perf_counter()
    seen = sum(len(images) for images in islice(batches, steps))
    seconds = perf_counter() - start
    close = getattr(batches, "close", None)
    if close:
        close()
    return seen / seconds


def memory(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Memory of this process and its workers, in MB, while many samples go through."""
    draw = np.random.default_rng(args.seed)
    images = draw.integers(0, 256, (4000, 12, 12), dtype=np.uint8)
    make_shards(
        Arrays(images, draw.integers(0, 10, 4000), ()),
        folder,
        "train",
        ImagePreparation(500),
        workers=2,
    )
    shards = open_shards(str(folder), "train")
    plan = Plan(shards.lengths, 200, seed=args.seed, window=2)
    options = {"color_jitter": None, "interpolation": "nearest"}
    loader = Loader(shards, plan, ImageTransform(8, True, options), workers=args.workers)
    steps = args.samples // plan.batch_size
    marks = {max(steps * percent // 100, 1): percent for percent in (10, 25, 50, 75, 99)}
    found: dict[str, float] = {}
    for batch in loader.batches(0, steps):
        if batch.step in marks:
            found[f"{marks[batch.step]}%"] = total_mb()
    return {"samples": args.samples, "mb": found, "growth_mb": found["99%"] - found["10%"]}


def total_mb() -> float:
    """Memory of this process and its children, pages that they share counted once.

    Without mapped files: how much of a library counts as ours depends on who else has it open.
    """
    this = psutil.Process()
    texts = [
        Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        for process in [this, *this.children(recursive=True)]
    ]
    found = [re.findall(r"Pss_(?:Anon|Shmem): *(\d+) kB", text) for text in texts]
    return sum(int(kilobytes) for each in found for kilobytes in each) * 1024 / 1e6


def startup(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """10,000 shards: opening them, and the plan of one of 8,192 workers."""
    lengths = index_without_shards(folder, args.seed)
    start = perf_counter()
    shards = open_shards(str(folder), "train")
    plan = Plan(shards.lengths, RANKS * 32, seed=args.seed)
    entries = plan.batch(0, RANKS - 1, RANKS)
    shards.rows[entries.sample_index]["offset"].sum()
    ready = perf_counter() - start
    start = perf_counter()
    steps = range(WORKERS - 1, plan.steps, WORKERS)
    for step in steps:
        plan.batch(step, RANKS - 1, RANKS)
    planned = perf_counter() - start
    return {
        "shards": SHARDS,
        "samples": int(sum(lengths)),
        "ready_seconds": ready,
        "plan_seconds_per_worker_and_epoch": planned,
    }


def index_without_shards(folder: Path, seed: int) -> list[int]:
    """The files that an opened set needs: start-up reads no shard."""
    lengths = np.random.default_rng(seed).integers(100, 157, SHARDS).tolist()
    names = [f"train-{i:05d}.tar" for i in range(SHARDS)]
    rows = [Row(f"{i:08d}_n01440764", 1536 + 2048 * i, 1500, i % 1000) for i in range(157)]
    table = as_table(rows)
    write_table(folder / index_name("train"), [table[:length] for length in lengths])
    split = SplitInfo("train", sum(lengths), names, lengths)
    Info({"train": split}).write(str(folder))
    return lengths


def bytes_read(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Read a worker's samples, in the order of a plan; the system says how many bytes it gave."""
    preparation = ImagePreparation(samples_per_shard=100)
    make_shards(Pictures(800, args.img_size, args.seed), folder, "train", preparation, workers=2)
    shards = open_shards(str(folder), "train")
    plan = Plan(shards.lengths, 64, seed=args.seed, window=3)
    reader = SampleReader(shards)
    reader.read(np.arange(1))
    wanted, before = 0, asked_bytes()
    for step in range(1, plan.steps, 4):
        entries = plan.batch(step, rank=1, world_size=2)
        reader.read(entries.sample_index)
        wanted += int(shards.rows[entries.sample_index]["size"].sum())
    return {"ratio": (asked_bytes() - before) / wanted, "bytes": wanted}


def asked_bytes() -> int:
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


MEASUREMENTS = {"speed": speed, "memory": memory, "startup": startup, "bytes": bytes_read}


# --- report ------------------------------------------------------------------------------------


def lines(results: dict[str, Any]) -> Iterable[str]:
    if "speed" in results:
        medians, ratios = results["speed"]["images_per_second"], results["speed"]["vit_rpe_over"]
        for name, value in medians.items():
            yield f"{name:16} {value:8.1f} images/s   vit_rpe is {ratios[name]:.2f} times as fast"
    if "memory" in results:
        found = ", ".join(f"{at} {mb:.1f}" for at, mb in results["memory"]["mb"].items())
        yield f"memory over {results['memory']['samples']} samples, MB: {found}"
    if "startup" in results:
        at = results["startup"]
        ready, planned = at["ready_seconds"], at["plan_seconds_per_worker_and_epoch"]
        yield f"{at['shards']} shards, {at['samples']} samples: ready after {ready:.3f} s"
        yield f"plan of one of {RANKS} x {WORKERS} workers for an epoch: {planned:.3f} s"
    if "bytes" in results:
        yield f"bytes read: {results['bytes']['ratio']:.4f} times those of the samples"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = bench_parser("data", __doc__)
    add = parser.add_argument
    add("--only", default=",".join(MEASUREMENTS), help="speed, memory, startup, bytes")
    add("--images", type=positive_integer, default=1600, help="synthetic JPEGs, and per round")
    add("--img-size", "--side", type=positive_integer, default=224)
    add("--batch", "--batch-size", type=positive_integer, default=32)
    add("--workers", type=positive_integer, default=2)
    add("--rounds", type=positive_integer, default=5)
    add("--samples", type=positive_integer, default=200_000, help="of the memory measurement")
    add_common(parser, quick="few images and samples: does it run?", devices=("cpu",))
    args = parsed(parser, argv)
    try:
        args.only = chosen(args.only, list(MEASUREMENTS))
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --only: {error}")
    if args.quick:
        args.images, args.img_size, args.rounds, args.samples = 64, 32, 1, 20_000
    if args.images < 8 * args.workers or args.images < args.batch:
        parser.error(f"argument --images: too few for 8 shards and a batch, got {args.images}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    results: dict[str, Any] = {}
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = MEASUREMENTS[name](Path(folder), args)
        print(*lines({name: results[name]}), sep="\n", flush=True)
    settings = {name: str(value) for name, value in vars(args).items()}
    write_report(args.json, {**environment("cpu"), "settings": settings, **results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
