"""Turns a softmax ViT of timm into one of our models, in a directory that timm loads.

    python tools/convert_timm.py vit_base_patch16_224 --output DIR --feature-map favor
    python tools/convert_timm.py weights.safetensors --model-name vit_base_patch16_224 --output DIR

then, after `import vit_rpe`, `timm.create_model('local-dir:DIR', pretrained=True)`.
"""

from __future__ import annotations

import argparse
import ast
import logging
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: tools, vit_rpe

import vit_rpe
from tools.common.command_line import Parser, one_line_errors
from tools.common.model_folder import check_output
from vit_rpe.features.names import ELEMENTWISE, RANDOM
from vit_rpe.models.conversion import LINEAR_OPTIONS, MASK_OPTIONS, ConversionReport, convert
from vit_rpe.models.names import RPES
from vit_rpe.training import class_names, find_model, with_classes
from vit_rpe.training.recipe.nearest import nearest

LOCAL = "local-dir:"
FILES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".pkl", ".npz")


def load_source(name: str, pretrained: bool, model_args: dict[str, Any]) -> torch.nn.Module:
    """A timm model by its name or directory; only safetensors are read from a directory."""
    if ":" not in name and Path(name).is_dir():
        name = f"{LOCAL}{find_model(name)}"
    if name.startswith(LOCAL):
        directory = Path(name.removeprefix(LOCAL))
        for file in ("config.json", "model.safetensors"):
            if not (directory / file).is_file():
                raise ValueError(f"there is no {file} in {directory}")
    elif ":" not in name and not timm.is_model(name.split(".")[0]):
        raise ValueError(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
    try:
        return timm.create_model(name, pretrained=pretrained, **model_args)
    except Exception as error:  # timm, the hub and the network raise many kinds
        what = "its pretrained weights" if pretrained else "it"
        raise ValueError(f"{name}: timm could not give {what}: {error}") from error


def save(model: Any, report: ConversionReport, directory: Path, overwrite: bool = False) -> None:
    """Weights as safetensors and a config.json with everything that makes the model again."""
    if report.unnamed:
        layers = ", ".join(f"{name}={value}" for name, value in report.unnamed.items())
        raise ValueError(
            f"a config.json has no words for {layers}; use vit_rpe.models.convert in Python"
        )
    check_output(directory, overwrite)
    save_for_hf(model, str(directory), safe_serialization=True, model_args=report.kwargs)


def key_value(text: str) -> tuple[str, Any]:
    """`depth=2`, `img_size=(32, 48)`, `global_pool=avg`."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"need NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def parser() -> argparse.ArgumentParser:
    parser = Parser(description="Turn a softmax ViT of timm into a Performer.")
    add = parser.add_argument
    add("source", help="a timm model, a run, a checkpoint, or a .safetensors file")
    add("--output", type=Path, required=True, metavar="DIR")
    add("--overwrite", action="store_true", help="write into a directory that is not empty")
    add("--model-name", help="the timm architecture of a .safetensors file")
    add(
        "--model-arg",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the source's architecture; may be given several times",
    )
    add("--no-pretrained", action="store_true", help="a timm model with random weights")
    add("--seed", type=int, default=0, help="of the random features")
    add("--attention", choices=("linear", "softmax"), default="linear")
    add("--feature-map", choices=(*ELEMENTWISE, *RANDOM))
    add("--num-features", type=int, help="random features of each head")
    add("--unit-norm", action="store_true", default=None, help="queries and keys of length 1")
    add("--path", choices=("auto", "explicit", "product", "scan"))
    add("--rpe", choices=(*RPES, "none"))
    add("--rpe-init", choices=("ones", "decay"))
    add("--rpe-gain", type=float)
    add("--rpe-terms", type=int)
    add("--rpe-positive", choices=("exp", "abs"))
    add("--border", choices=("ones", "learned"))
    add("--img-size", type=int, nargs="+", metavar="SIDE", help="height and width, or one for both")
    add("--num-classes", type=int, help="a new head of so many classes")
    return parser


def run(args: argparse.Namespace) -> ConversionReport:
    check_output(args.output, args.overwrite)  # before the work, not after it
    options = {
        name: getattr(args, name)
        for name in (*MASK_OPTIONS, *LINEAR_OPTIONS, "num_classes")
        if getattr(args, name) is not None
    }
    if args.img_size is not None:
        if len(args.img_size) > 2:
            raise ValueError(f"--img-size takes 1 or 2 sides, got {len(args.img_size)}")
        options["img_size"] = (args.img_size[0], args.img_size[-1])
    model_args = dict(args.model_arg)
    torch.manual_seed(args.seed)
    if args.model_name is not None or Path(args.source).suffix in FILES:
        source, described = args.source, {"model_name": args.model_name, "model_args": model_args}
    else:
        source, described = load_source(args.source, not args.no_pretrained, model_args), {}
    model, report = convert(source, **described, attention=args.attention, **options)
    with_classes(model, [] if isinstance(source, str) else class_names(source))
    save(model, report, args.output, args.overwrite)
    return report


def main(argv: list[str] | None = None) -> int:
    for library in ("timm", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    args = parser().parse_args(argv)
    with one_line_errors("convert_timm"):
        report = run(args)
    print(report)
    print(f"written     {args.output}, by vit_rpe {vit_rpe.__version__}; to load it:")
    print(f"            timm.create_model('{LOCAL}{args.output}', pretrained=True)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
