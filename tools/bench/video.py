"""Video models on a whole clip and as a stream, and how fast clips come out of video files.

    python tools/bench/video.py --json video.json
    python tools/bench/video.py --frames 16,32 --img-size 224 --seconds 60
    python tools/bench/video.py --quick

Contestants take turns, and medians are compared within one run. "softmax" is a ViT over the same
tubelets without any mask (fused attention); "step" is a training step: forward, cross-entropy,
backward. A stream is fed tubelet by tubelet; its first and last steps are given, and the sum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

import vit_rpe  # noqa: F401  registers the models
from tools.bench.harness import (
    add_common,
    bench_parser,
    environment,
    in_turns,
    number,
    parsed,
    peak_mb,
    positive_integers,
    timed,
    use_threads,
    write_report,
)
from vit_rpe.cli.command_line import positive_integer
from vit_rpe.data import ClipSampler, ClipTransform, VideoDecoder
from vit_rpe.data.making import h264

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("vit_rpe3d_{}_patch16_224", {"rpe": "none"}),
    "vit_rpe3d/offset": ("vit_rpe3d_{}_patch16_224", {}),
    "performer3d": ("performer3d_{}_patch16_224", {}),
    "performer_rpe3d/offset": ("performer_rpe3d_{}_patch16_224", {}),
    "performer_rpe3d/factorized": ("performer_rpe3d_{}_patch16_224", {"rpe": "factorized"}),
    "performer_rpe3d/exponential": ("performer_rpe3d_{}_patch16_224", {"rpe": "exponential"}),
}
STREAMS = ("performer3d", "performer_rpe3d/offset", "performer_rpe3d/exponential")


def build(name: str, args: argparse.Namespace, frames: int, **options: Any) -> Any:
    architecture, own = MODELS[name]
    if own.get("rpe", "") != "none" and name != "performer3d":
        own = {**own, "rpe_init": "decay"}
    sizes = {"img_size": args.img_size, "num_frames": frames, "depth": args.depth}
    torch.manual_seed(args.seed)
    model = timm.create_model(architecture.format(args.size), **sizes, **own, **options)
    return model.to(args.device)


def clips(args: argparse.Namespace, frames: int) -> Tensor:
    return torch.randn(args.batch, 3, frames, args.img_size, args.img_size, device=args.device)


def whole_clips(args: argparse.Namespace, frames: int) -> dict[str, dict[str, Any]]:
    """Median milliseconds of inference and of a training step, and peak megabytes of the step."""
    clip, labels = clips(args, frames), torch.zeros(args.batch, dtype=torch.long)
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name in MODELS:
        model = build(name, args, frames)

        def infer(model: Any = model) -> None:
            with torch.no_grad():
                model.eval()(clip)

        def step(model: Any = model) -> None:
            F.cross_entropy(model.train()(clip), labels.to(clip.device)).backward()
            model.zero_grad()

        calls[name, "infer"], calls[name, "step"] = infer, step
    memory = {name: peak_mb(calls[name, "step"], args.device) for name in MODELS}
    for call in calls.values():
        call()
    times = in_turns(calls, args.seconds, args.device, args.seed)
    return {
        name: {
            **{kind: 1e3 * median(times[name, kind]) for kind in ("infer", "step")},
            "step_mb": memory[name],
        }
        for name in MODELS
    }


def streams(args: argparse.Namespace, frames: int) -> dict[str, dict[str, Any]]:
    """Median milliseconds of a whole clip and of each step of a stream."""
    clip, found = clips(args, frames)[:1], {}
    for name in STREAMS:
        model = build(name, args, frames, causal_time=True).eval()
        stream, parts = model.stream(), clip.split(model.patch_embed.tubelet_size, 2)
        times: list[list[float]] = []
        wholes: list[float] = []
        with torch.no_grad():
            expected = model(clip)
            last = [stream(part) for part in parts][-1]
            for _ in range(args.rounds):
                wholes.append(timed(lambda model=model: model(clip), args.device))
                stream.reset()
                times.append([timed(lambda p=p, s=stream: s(p), args.device) for p in parts])
        steps = [1e3 * median(each) for each in zip(*times, strict=True)]
        found[name] = {
            "clip": 1e3 * median(wholes),
            "steps": steps,
            "difference": float((last - expected).abs().max()),
        }
    return found


def decoding(args: argparse.Namespace) -> dict[str, float]:
    """Clips per second that one core makes: 16 frames, every 4th, of a 10 s video of 340 x 256."""
    draw = np.random.default_rng(args.seed)
    coarse = draw.integers(0, 256, (args.video_frames, 8, 10, 3), dtype=np.uint8)
    large = [np.kron(frame, np.ones((32, 34, 1), np.uint8)) for frame in coarse]
    data, found = h264(large), {}
    for training in (True, False):
        transform = ClipTransform(args.img_size, ClipSampler(16, 4), training)(0)
        torch.manual_seed(args.seed)
        times = [
            timed(lambda t=transform: t(VideoDecoder()(data)), "cpu") for _ in range(args.rounds)
        ]
        found["training" if training else "evaluation"] = 1 / median(times)
    return found


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = bench_parser("video", __doc__)
    add = parser.add_argument
    add("--size", "--sizes", choices=("tiny", "small", "base"), default="tiny")
    add(
        "--frames",
        type=positive_integers,
        default=[16],
        help="of a clip, one number or several: 16,32",
    )
    add("--img-size", type=positive_integer, default=224)
    add("--batch", type=positive_integer, default=2)
    add("--depth", type=positive_integer, default=12)
    add("--rounds", type=positive_integer, default=7, help="of streams and decoding")
    add("--video-frames", type=positive_integer, default=250, help="of the file to decode")
    add_common(
        parser,
        quick="small sizes, to see that it works",
        seconds="for each table of whole clips (60; quick: 1)",
    )
    args = parsed(parser, argv)
    args.seconds = args.seconds or (1.0 if args.quick else 60.0)
    if args.quick:
        args.frames, args.img_size, args.batch, args.depth = [4], 32, 1, 1
        args.rounds, args.video_frames = 1, 70
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    use_threads(args.threads)
    results: dict[str, Any] = {"whole": {}, "streams": {}}
    for frames in args.frames:
        print(f"{args.size}, {frames} frames of {args.img_size}, {args.batch} clips; ms, MB")
        whole = results["whole"][frames] = whole_clips(args, frames)
        base = whole["softmax"]
        for name, row in whole.items():
            ratios = [f"{row[kind] / base[kind]:5.2f}" for kind in ("infer", "step")]
            memory = number(row["step_mb"])
            shown = (
                f"infer {row['infer']:8.1f} ({ratios[0]})  step {row['step']:8.1f} ({ratios[1]})"
            )
            print(f"  {name:28} {shown}  {memory:>6} MB", flush=True)
        stream = results["streams"][frames] = streams(args, frames)
        for name, row in stream.items():
            steps = row["steps"]
            print(
                f"  stream {name:28} clip {row['clip']:7.1f}  steps {steps[0]:.1f} ... "
                f"{steps[-1]:.1f}  sum {sum(steps):7.1f}  difference {row['difference']:.1e}",
                flush=True,
            )
    results["clips_per_second"] = decoding(args)
    for kind, rate in results["clips_per_second"].items():
        print(f"  decoding, {kind}: {rate:.1f} clips/s on one core")
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    write_report(args.json, {**environment(args.device), "settings": settings, **results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
