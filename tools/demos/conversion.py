"""A softmax ViT learns scikit-learn's digits, is converted, and is fine-tuned for a few epochs.

    python tools/demos/conversion.py --json conversion.json --plot conversion.png

Accuracy of each feature map right after the conversion, over several draws of random features, and
after fine-tuning. Images of 8 x 8 pixels, patches of 2 x 2: 16 tokens and a class token. About ten
minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from vit_rpe.cli.command_line import Parser, one_line_errors
from vit_rpe.models.conversion import convert

SHAPE = {
    **{"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10},
    **{"embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0},
}
FEATURE_MAPS: list[tuple[str, int | None]] = [
    *[("relu", None), ("elu", None), ("square", None)],
    *[("favor", count) for count in (16, 64, 256)],
    *[("favor_hyperbolic", count) for count in (64, 256)],
]
CURVE = (8, 16, 32, 64, 128, 256, 512, 1024)
BATCH = 32
COLOURS = {"favor": "#1f77b4", "favor_hyperbolic": "#d95f02"}
GREY = "#444444"


@dataclass
class Split:
    """Digits from -1 to 1, (N, 1, 8, 8), and their classes."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass
class Row:
    """Accuracies in per cent; those after the conversion are over the draws of the features."""

    feature_map: str
    num_features: int | None
    unit_norm: bool
    converted: float
    lowest: float
    highest: float
    fine_tuned: float

    @property
    def label(self) -> str:
        return self.feature_map + (f" {self.num_features}" if self.num_features else "")


def digits(seed: int) -> Split:
    """80 % to train and 20 % to test, with equal parts of each class."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the digits come with `pip install scikit-learn`") from error
    data: Any = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(data.target)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=data.target, random_state=seed
    )
    return Split(images[train], labels[train], images[test], labels[test])


def softmax_vit(seed: int, **options: Any) -> nn.Module:
    """A small ViT of timm. Its positions start large enough to be seen: the data are few."""
    torch.manual_seed(seed)
    model: Any = timm.create_model(
        "vit_tiny_patch16_224", **{**SHAPE, "weight_init": "jax", **options}
    )
    nn.init.normal_(model.pos_embed, std=0.5)
    return model


def train(model: nn.Module, split: Split, epochs: int, peak: float, seed: int) -> None:
    """AdamW with a warm-up and a cosine; half of the images of a batch are shifted by a pixel."""
    torch.manual_seed(seed)
    steps = len(split.train_images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak, total_steps=max(2, steps * epochs), pct_start=0.1
    )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(split.train_images))
        for batch in order[: steps * BATCH].split(BATCH):
            images, labels = split.train_images[batch], split.train_labels[batch]
            images = torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, images, _shifted(images))
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def _shifted(images: Tensor) -> Tensor:
    row, column = torch.randint(3, (2,)).tolist()
    padded = F.pad(images, (1, 1, 1, 1), value=-1.0)
    return padded[..., row : row + images.shape[-2], column : column + images.shape[-1]]


@torch.inference_mode()
def accuracy(model: nn.Module, split: Split) -> float:
    """Per cent of the test images."""
    model.eval()
    return 100 * (model(split.test_images).argmax(-1) == split.test_labels).float().mean().item()


def converted(model: nn.Module, draw: int, feature_map: str, **options: Any) -> nn.Module:
    torch.manual_seed(draw)
    return convert(model, feature_map=feature_map, rpe="offset", **options)[0]


def measure(
    original: nn.Module,
    split: Split,
    feature_map: str,
    num_features: int | None,
    unit_norm: bool,
    draws: int,
    epochs: int,
    peak: float,
) -> Row:
    """One feature map; the model of the first draw is the one that is fine-tuned."""
    options: dict[str, Any] = {"unit_norm": unit_norm}
    if num_features is None:
        draws = 1
    else:
        options["num_features"] = num_features
    models = [converted(original, draw, feature_map, **options) for draw in range(draws)]
    found = [accuracy(model, split) for model in models]
    if epochs > 0:
        train(models[0], split, epochs, peak, seed=1)
    after = accuracy(models[0], split)
    return Row(feature_map, num_features, unit_norm, mean(found), min(found), max(found), after)


def run(args: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    split = digits(args.seed)
    original = softmax_vit(args.seed)
    train(original, split, args.epochs, args.lr, args.seed)
    top = accuracy(original, split)
    seconds = time.perf_counter() - begin
    print(f"softmax ViT: {top:.1f} % of {len(split.test_labels)} test images, {seconds:.0f} s")

    # what the same few epochs do to the original, and to a Performer that starts from nothing
    longer = convert(original, attention="softmax", rpe="offset")[0]
    train(longer, split, args.fine_tune_epochs, args.fine_tune_lr, seed=1)
    scratch = converted(softmax_vit(args.seed), 0, "relu")
    train(scratch, split, args.fine_tune_epochs, args.fine_tune_lr, seed=1)
    controls = {"softmax": accuracy(longer, split), "scratch": accuracy(scratch, split)}
    print(f"softmax with a mask, fine-tuned as long: {controls['softmax']:.1f} %")
    print(f"ReLU Performer from scratch, trained as long: {controls['scratch']:.1f} %")

    rows: list[Row] = []
    print(f"\n{'feature map':<22}{'q and k':<13}{'converted':>10}{'range':>15}{'fine-tuned':>12}")
    for unit_norm in (False, True):
        for feature_map, count in FEATURE_MAPS:
            tuning = (args.draws, args.fine_tune_epochs, args.fine_tune_lr)
            row = measure(original, split, feature_map, count, unit_norm, *tuning)
            rows.append(row)
            norm = "unit length" if unit_norm else "as they are"
            spread = f"{row.lowest:.1f} .. {row.highest:.1f}" if count else ""
            numbers = f"{row.converted:>10.1f}{spread:>15}{row.fine_tuned:>12.1f}"
            print(f"{row.label:<22}{norm:<13}{numbers}", flush=True)
    curve = [
        measure(original, split, feature_map, count, False, args.draws, 0, 0.0)
        for feature_map in COLOURS
        for count in CURVE
    ]
    return {
        "seed": args.seed,
        "draws": args.draws,
        "epochs": args.epochs,
        "fine_tune_epochs": args.fine_tune_epochs,
        "test_images": len(split.test_labels),
        "original": top,
        "controls": controls,
        "rows": [asdict(row) for row in rows],
        "curve": [{k: v for k, v in asdict(row).items() if k != "fine_tuned"} for row in curve],
        "seconds": time.perf_counter() - begin,
        "versions": {"torch": torch.__version__, "timm": timm.__version__},
    }


def draw(results: dict[str, Any], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a plot needs `pip install vit_rpe[report]`") from error
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.15, 1]})
    _draw_curve(left, results)
    _draw_rows(right, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})


def _draw_curve(axes: Any, results: dict[str, Any]) -> None:
    for name, colour in COLOURS.items():
        points = [p for p in results["curve"] if p["feature_map"] == name]
        x = [p["num_features"] for p in points]
        axes.fill_between(
            x,
            [p["lowest"] for p in points],
            [p["highest"] for p in points],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(
            x,
            [p["converted"] for p in points],
            color=colour,
            marker=".",
            label=f"{name}, right after conversion",
        )
        tuned = [p for p in results["rows"] if p["feature_map"] == name and not p["unit_norm"]]
        axes.plot(
            [p["num_features"] for p in tuned],
            [p["fine_tuned"] for p in tuned],
            linestyle="none",
            marker="s" if name == "favor" else "^",
            markerfacecolor="white",
            color=colour,
            label=f"{name}, fine-tuned {results['fine_tune_epochs']} epochs",
        )
    top = results["original"]
    axes.axhline(top, color=GREY, linestyle="--", label=f"softmax original, {top:.1f} %")
    axes.set_xscale("log", base=2)
    axes.set_xticks(CURVE, [str(n) for n in CURVE])
    axes.set(xlabel="random features per head", ylabel="test accuracy, %", ylim=(0, 102))
    axes.set_title(
        f"random features, q and k as they are: mean and range of {results['draws']} draws",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


def _draw_rows(axes: Any, results: dict[str, Any]) -> None:
    rows = [Row(**row) for row in results["rows"]]
    labels = list(dict.fromkeys(row.label for row in rows))
    for norm, offset, colour in ((False, -0.16, "#1b7837"), (True, 0.16, "#9970ab")):
        of_norm = [row for row in rows if row.unit_norm is norm]
        y = [labels.index(row.label) + offset for row in of_norm]
        before, after = [r.converted for r in of_norm], [r.fine_tuned for r in of_norm]
        axes.hlines(y, before, after, color=colour, alpha=0.4)
        words = "q, k of unit length" if norm else "q, k as they are"
        axes.plot(before, y, "o", color=colour, label=f"{words}: converted")
        axes.plot(
            after, y, "D", color=colour, markerfacecolor="white", label=f"{words}: fine-tuned"
        )
    axes.axvline(results["original"], color=GREY, linestyle="--", label="softmax original")
    axes.axvline(
        results["controls"]["scratch"], color=GREY, linestyle=":", label="relu from scratch"
    )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set(xlabel="test accuracy, %", xlim=(0, 102))
    epochs = results["fine_tune_epochs"]
    axes.set_title(f"fine-tuned, or trained from scratch, for {epochs} epochs", fontsize=10)
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=3)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        prog="demos/conversion", description="Convert a ViT that knows scikit-learn's digits."
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights, the order")
    parser.add_argument("--draws", type=int, default=10, help="of each set of random features")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--fine-tune-epochs", type=int, default=5)
    parser.add_argument("--fine-tune-lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1, help="so small a model gains from one")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    with one_line_errors("demos/conversion"):
        results = run(args)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1) + "\n")
        if args.plot is not None:
            draw(results, args.plot)
    print(f"\n{results['seconds']:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
