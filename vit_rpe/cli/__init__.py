"""The command `vit-rpe`: one small module per subcommand.

A module `vit_rpe.cli.NAME` has `main(argv) -> int`, which parses what follows its name and returns
the exit code. Modules are imported only when their command is called, so that `--help` is quick.
`options/` has the parsers of commands with many options.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import vit_rpe
from vit_rpe.extras import MissingExtra
from vit_rpe.messages import nearest
from vit_rpe.program import program, set_program

from .command_line import INTERRUPTED, WRONG, say_error

__all__ = ["COMMANDS", "main", "run"]

COMMANDS: dict[str, str] = {  # name -> what it does, in one line, in the order of the help
    "train": "train a model by a recipe, or resume a run",
    "evaluate": "accuracy of a run, a checkpoint or a timm model on shards",
    "predict": "name what is on images and videos: table, CSV, JSON, a grid of pictures",
    "export": "write a model as ONNX or torch.export, checked, for programs without this package",
    "study": "train variants of a recipe with several seeds, and compare them with error bars",
    "graphs": "run the paper's graph experiments: GKAT and its rivals",
    "report": "make a page to look at of a run, or of several, compared",
    "replay": "make a past step of a run again, and look at its batch and its numbers",
    "shards": "make shards of images or videos, or verify them",
    "recipes": "list, show, copy and find the recipes and launch files that are shipped",
    "convert": "turn a softmax ViT of timm into a Performer",
    "inflate": "turn an image model into a video model",
    "check": "check the numbers of every attention path, or of the GPU kernels, on this machine",
}
LIGHT = ("recipes",)  # they know no models

USAGE = """usage: {program} COMMAND ...

{rows}

{program} COMMAND --help says more, with examples. A first run, of about a minute:

    {program} train --recipe quickstart
    {program} evaluate --checkpoint runs/quickstart --data data/digits

Exit codes: 0 done, 1 an error of the program (or a check that failed), 2 wrong input, in one line,
3 a run that diverged, 4 a process of it was stuck, 75 stopped by a signal: the same command goes
on (a run: with resume=auto), 130 Ctrl-C.
"""


def main(argv: Sequence[str] | None = None, typed: str = "vit-rpe") -> int:
    """Run the subcommand that the first argument names; return its exit code."""
    set_program(typed)
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_usage(typed), end="")
    elif name in ("-V", "--version"):
        print(f"vit_rpe {vit_rpe.__version__}")
    elif name in COMMANDS:
        return run(name, arguments[1:])
    else:
        close = nearest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        say_error(typed, f"no command {name!r}{close}")
        return WRONG
    return 0


def run(name: str, argv: Sequence[str] | None = None, called: str = "") -> int:
    """Run a subcommand, `called` by another name in its messages; return its exit code."""
    if called:
        set_program("python -m vit_rpe", called)
    if os.environ.get("RANK", "0") != "0":  # what all processes do is told once
        logging.getLogger("vit_rpe").setLevel(logging.ERROR)
    try:
        if name not in LIGHT:
            import_module("vit_rpe.models")  # timm knows them from now on
        module = import_module(f"{__name__}.{name}")
        code = module.main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except MissingExtra as error:
        say_error(program(name), error)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _usage(typed: str) -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return USAGE.format(program=typed, rows=rows)
