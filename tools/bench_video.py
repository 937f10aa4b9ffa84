"""Video models on a whole clip and as a stream, and how fast clips come out of video files.

    python tools/bench_video.py --json video.json
    python tools/bench_video.py --frames 16,32 --img-size 224 --seconds 60
    python tools/bench_video.py --quick

Contestants take turns, and medians are compared within one run. "softmax" is a ViT over the same
tubelets without any mask (fused attention); "step" is a training step: forward, cross-entropy,
backward. A stream is fed tubelet by tubelet; its first and last steps are given, and the sum.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from bench_measure import add_common, check_device, environment, in_turns, peak_mb, timed
from command_line import Parser, positive_integer, positive_number
from torch import Tensor

import vit_rpe  # noqa: F401  registers the models
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
    parser = Parser(
        prog="bench_video",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", choices=("tiny", "small", "base"), default="tiny")
    add("--frames", type=integers, default=[16], help="of a clip, one number or several: 16,32")
    add("--img-size", type=positive_integer, default=224)
    add("--batch", type=positive_integer, default=2)
    add("--depth", type=positive_integer, default=12)
    add("--seconds", type=positive_number, default=60.0, help="for each table of whole clips")
    add("--rounds", type=positive_integer, default=7, help="of streams and decoding")
    add("--video-frames", type=positive_integer, default=250, help="of the file to decode")
    add("--quick", action="store_true", help="small sizes, to see that it works")
    add_common(parser)
    args = parser.parse_args(argv)
    check_device(parser, args.device)
    if args.quick:
        args.frames, args.img_size, args.batch, args.depth = [4], 32, 1, 1
        args.seconds, args.rounds, args.video_frames = 1.0, 1, 70
    return args


def integers(text: str) -> list[int]:
    return [positive_integer(part) for part in text.split(",")]


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    results: dict[str, Any] = {"whole": {}, "streams": {}}
    for frames in args.frames:
        print(f"{args.size}, {frames} frames of {args.img_size}, {args.batch} clips; ms, MB")
        whole = results["whole"][frames] = whole_clips(args, frames)
        base = whole["softmax"]
        for name, row in whole.items():
            ratios = [f"{row[kind] / base[kind]:5.2f}" for kind in ("infer", "step")]
            memory = "-" if row["step_mb"] is None else f"{row['step_mb']:6.0f}"
            shown = (
                f"infer {row['infer']:8.1f} ({ratios[0]})  step {row['step']:8.1f} ({ratios[1]})"
            )
            print(f"  {name:28} {shown}  {memory} MB", flush=True)
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
    if args.json is not None:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        text = json.dumps({**environment(args.device), "settings": settings, **results}, indent=1)
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped")
