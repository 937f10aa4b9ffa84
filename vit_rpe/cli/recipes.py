"""Recipes, studies and launch files that come with vit_rpe.

    vit-rpe recipes list
    vit-rpe recipes show quickstart
    vit-rpe recipes copy quickstart
    vit-rpe recipes path cpu_x2
    accelerate launch --config_file $(vit-rpe recipes path cpu_x2) -m vit_rpe train --recipe NAME

`vit-rpe train --recipe NAME` finds a recipe by its name. To change one, copy it, or write a file of
your own that names it: `extends: quickstart`.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.program import prefix, program
from vit_rpe.shipped import find_shipped, shipped

from .command_line import DONE, Parser, command_parser, one_line_errors

HEADINGS = {  # of the kinds of files: what they are called, and what takes their names
    "recipe": "recipes, for `{prefix} train --recipe NAME`",
    "study": "studies, for `{prefix} study NAME`",
    "launch file": "launch files, for `accelerate launch --config_file FILE`; path prints FILE",
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    with one_line_errors(program("recipes")):
        args.run(args)
    return DONE


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("recipes", __doc__)
    kinds = parser.add_subparsers(required=True, parser_class=Parser, metavar="ACTION")
    actions = {
        "list": (_list, "names and first lines of all files"),
        "show": (_show, "print a file"),
        "copy": (_copy, "copy a file, to change it (what it extends is found by name)"),
        "path": (_path, "print where a file is, for accelerate launch --config_file"),
    }
    for name, (run, text) in actions.items():
        kind = kinds.add_parser(name, help=text, description=text)
        kind.set_defaults(run=run)
        if run is not _list:
            kind.add_argument("name", metavar="NAME", help="of a file, as the list has it")
        if run is _copy:
            folder = "where the copy goes (default: here)"
            kind.add_argument(
                "folder", type=Path, nargs="?", default=".", metavar="DIR", help=folder
            )
    return parser.parse_args(argv)


def _list(_: argparse.Namespace) -> None:
    for kind, heading in HEADINGS.items():
        files = shipped(kind)
        if files:
            print(heading.format(prefix=prefix()))
        width = max(map(len, files), default=0)
        for name, path in files.items():
            print(f"  {name:<{width}}  {_title(path)}")


def _title(path: Path) -> str:
    """Return the first line of a file's header."""
    return path.read_text().partition("\n")[0].lstrip("# ")


def _show(args: argparse.Namespace) -> None:
    print(find_shipped(args.name).read_text(), end="")


def _copy(args: argparse.Namespace) -> None:
    source = find_shipped(args.name)
    target = args.folder / source.name
    if target.exists():
        raise FileExistsError(f"{target} is there already; nothing was written")
    args.folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    print(target)


def _path(args: argparse.Namespace) -> None:
    print(find_shipped(args.name))
