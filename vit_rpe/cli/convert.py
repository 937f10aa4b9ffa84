"""Turn a softmax ViT of timm into one of our models, in a folder that timm loads.

    vit-rpe convert --model vit_base_patch16_224 --output DIR --feature-map favor
    vit-rpe convert --checkpoint runs/vit --output DIR --rpe exponential
    vit-rpe convert --checkpoint weights.safetensors --model vit_base_patch16_224 --output DIR

then, after `import vit_rpe`, `timm.create_model('local-dir:DIR', pretrained=True)`; or
`initial_checkpoint=DIR` in a recipe.
"""

from __future__ import annotations

import argparse
import ast
import logging
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf

import vit_rpe
from vit_rpe.attention import PATHS
from vit_rpe.features import ELEMENTWISE, RANDOM
from vit_rpe.messages import nearest
from vit_rpe.models import LINEAR_OPTIONS, MASK_OPTIONS, RPES, ConversionReport, convert
from vit_rpe.program import program
from vit_rpe.training import class_names, find_model, with_classes

from .command_line import (
    check_output,
    command_parser,
    count,
    height_and_width,
    old_spelling,
    one_line_errors,
    positive_integer,
)

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


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; `source` is a model or a checkpoint, `model` that of a file."""
    parser = command_parser("convert", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        metavar="PATH",
        help="a run, a folder that timm loads, or a .safetensors file",
    )
    add(
        "--model",
        metavar="NAME",
        help="a timm model: to convert, or the architecture of a .safetensors file",
    )
    old_spelling(parser, "source", nargs="?", default=None)
    old_spelling(parser, "--model-name", dest="model")
    add("--output", type=Path, required=True, metavar="DIR", help="folder for the new model")
    add("--overwrite", action="store_true", help="write into a directory that is not empty")
    add(
        "--model-arg",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the source's architecture; may be given several times",
    )
    add(
        "--pretrained",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="of a timm model: its published weights (default), or random ones",
    )
    add("--num-classes", type=positive_integer, metavar="N", help="a new head of N classes")
    add(
        "--img-size",
        type=height_and_width,
        nargs="+",
        metavar="SIZE",
        help="224, or 192x224 with the height first (default: the source's)",
    )
    add("--seed", type=count, default=0, metavar="N", help="of the random features (default: 0)")
    group = parser.add_argument_group("the new attention (default: as in the model's own name)")
    add = group.add_argument
    add("--attention", choices=("linear", "softmax"), default="linear", help="default: linear")
    add("--feature-map", choices=(*ELEMENTWISE, *RANDOM), help="default: relu")
    add(
        "--num-features",
        type=positive_integer,
        metavar="N",
        help="random features of each head (default: its channels)",
    )
    add("--unit-norm", action="store_true", default=None, help="queries and keys of length 1")
    add("--path", choices=PATHS, help="default: auto, the cheapest one")
    add("--rpe", choices=(*RPES, "none"), help="the kind of mask (default: offset)")
    add("--rpe-init", choices=("ones", "decay"), help="the mask at the start (default: ones)")
    add("--rpe-gain", type=float, metavar="X", help="how fast the mask learns (default: 1)")
    add("--rpe-terms", type=positive_integer, metavar="N", help="of an exponential mask")
    add("--rpe-positive", choices=("exp", "abs"), help="parameters to weights (default: exp)")
    add("--border", choices=("ones", "learned"), help="weights of class tokens (default: ones)")
    args = parser.parse_args(argv)
    given = args.source or args.checkpoint
    if args.source and args.checkpoint:
        parser.error(f"one source, got {args.source} and {args.checkpoint}")
    if given is None and args.model is None:
        parser.error("one of --model and --checkpoint is required")
    if given is None:
        args.source, args.model = args.model, None
    else:
        args.source = given
    return args


def run(args: argparse.Namespace) -> ConversionReport:
    check_output(args.output, args.overwrite)  # before the work, not after it
    options = {
        name: getattr(args, name)
        for name in (*MASK_OPTIONS, *LINEAR_OPTIONS, "num_classes")
        if getattr(args, name) is not None
    }
    if args.img_size is not None:
        sizes = args.img_size  # two numbers are an old spelling of height and width
        if len(sizes) > 2:
            raise ValueError(f"--img-size takes 1 or 2 sides, got {len(sizes)}")
        options["img_size"] = sizes[0] if len(sizes) == 1 else (sizes[0][0], sizes[1][0])
    model_args = dict(args.model_arg)
    torch.manual_seed(args.seed)
    if args.model is not None or Path(args.source).suffix in FILES:
        source, described = args.source, {"model_name": args.model, "model_args": model_args}
    else:
        source, described = load_source(args.source, args.pretrained, model_args), {}
    model, report = convert(source, **described, attention=args.attention, **options)
    with_classes(model, [] if isinstance(source, str) else class_names(source))
    save(model, report, args.output, args.overwrite)
    return report


def main(argv: list[str] | None = None) -> int:
    for library in ("timm", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    args = parse(argv)
    with one_line_errors(program("convert")):
        report = run(args)
    print(report)
    print(f"written     {args.output}, by vit_rpe {vit_rpe.__version__}; to load it:")
    print(f"            timm.create_model('{LOCAL}{args.output}', pretrained=True)")
    return 0
