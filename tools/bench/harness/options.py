"""Options that benchmarks share, in one spelling."""

from __future__ import annotations

import argparse

import torch

from vit_rpe.cli.command_line import (
    Parser,
    described_parser,
    new_file,
    positive_integer,
    positive_number,
)


def bench_parser(name: str, description: str | None) -> Parser:
    """Make the parser of a benchmark; abbreviated options are refused."""
    return described_parser(f"bench/{name}", description, allow_abbrev=False)


def add_common(
    parser: argparse.ArgumentParser,
    *,
    quick: str,
    seconds: str | None = None,
    devices: tuple[str, ...] = ("cpu", "cuda"),
) -> None:
    """Add what every benchmark has; `quick` and `seconds` are the help of these options.

    Without `seconds` a benchmark has no such option: it counts rounds.
    """
    add = parser.add_argument
    add("--quick", action="store_true", help=quick)
    if seconds is not None:
        add("--seconds", "--seconds-per-case", type=positive_number, help=seconds)
    add("--threads", type=positive_integer, help="of torch (default: all)")
    add("--device", choices=devices, default="cpu")
    add("--seed", type=int, default=0)
    add("--json", type=new_file, help="write all medians and settings to this file")


def parsed(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse the arguments, and refuse a device that is not there."""
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device")
    return args


def use_threads(count: int | None) -> None:
    """Set the threads of torch, if a number was given."""
    if count:
        torch.set_num_threads(count)


def chosen(text: str, names: list[str]) -> list[str]:
    """Return the names that a list picks, by themselves or by a part: `a/b`, `a` or `b`."""
    wanted = [part.strip() for part in text.split(",")]
    for part in wanted:
        if not any(part in (name, *name.split("/")) for name in names):
            raise argparse.ArgumentTypeError(
                f"no contestant {part!r}; there are {', '.join(names)}"
            )
    return [name for name in names if any(part in (name, *name.split("/")) for part in wanted)]


def positive_integers(text: str) -> list[int]:
    """Read one number or several: `16`, `16,32`."""
    return [positive_integer(part) for part in text.split(",")]
