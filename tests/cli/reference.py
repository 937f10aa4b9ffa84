"""The options of each command as docs/commands.md has them, taken from the parsers.

    python -m tests.cli.reference       writes them into the page

`tests/cli/test_reference.py` holds that the page is up to date.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import vit_rpe.models  # noqa: F401  timm knows them
from vit_rpe.cli import COMMANDS
from vit_rpe.cli.command_line import Parser

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
BEGIN, END = "<!-- options of {} -->\n", "<!-- end of options -->"
TABLE = re.compile(BEGIN.format("([a-z-]+)") + "(.*?)" + END, re.DOTALL)


class _Found(Exception):
    """The parser of a command, caught before it parses."""

    def __init__(self, parser: Parser):
        super().__init__()
        self.parser = parser


def parser_of(command: str) -> Parser:
    """The parser of a command, as it is when the command line is read."""

    def stop(self: Parser, *_: object, **__: object) -> None:
        raise _Found(self)

    methods = ("parse_args", "parse_known_args", "parse_intermixed_args")
    module = import_module(f"vit_rpe.cli.{command}")
    with patch.multiple(Parser, **dict.fromkeys(methods, stop)):
        try:
            module.main([])
        except _Found as found:
            return found.parser
    raise AssertionError(f"{command} has no Parser")


def parsers_of(command: str) -> Iterator[Parser]:
    """The parser of a command and those of its kinds, as `folder` is of `shards`."""
    parser = parser_of(command)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def arguments(parser: Parser) -> Iterator[argparse.Action]:
    """Everything that a parser takes and shows in its help, besides --help."""
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            yield action


def name_of(action: argparse.Action) -> str:
    """An argument as one types it: `--val-fraction [F]`, `--rpe {offset,...}`."""
    style = argparse.HelpFormatter("")
    if not action.option_strings:
        return style._format_args(action, action.metavar or action.dest)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    return f"{names} {style._format_args(action, action.dest.upper())}"


def table(command: str) -> str:
    """The options of a command as a Markdown table, with a column for those of some kinds only."""
    first, *kinds = parsers_of(command)
    names = [kind.prog.split()[-1] for kind in kinds]
    rows: dict[tuple[str, str], list[str]] = {}
    for parser, name in zip((first, *kinds), ("", *names), strict=True):
        for action in arguments(parser):
            if not isinstance(action, argparse._SubParsersAction):
                text = parser._get_formatter()._expand_help(action)
                rows.setdefault((name_of(action), text), []).append(name)
    lines = (
        ["| option | with | what |", "|---|---|---|"]
        if kinds
        else ["| option | what |", "|---|---|"]
    )
    for (name, text), where in rows.items():
        middle = f" {_some_of(names, where)} |" if kinds else ""
        lines.append(f"| `{name}` |{middle} {text} |")
    return "\n".join(lines) + "\n"


def _some_of(names: list[str], where: list[str]) -> str:
    others = [name for name in names if name not in where]
    if not others:
        return "all"
    return f"all but {', '.join(others)}" if len(others) < len(where) else ", ".join(where)


def updated(page: str) -> str:
    """The page with all tables as the parsers have them."""
    return TABLE.sub(lambda found: BEGIN.format(found[1]) + table(found[1]) + END, page)


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text()))
    print(f"{PAGE}: {', '.join(COMMANDS)}")


if __name__ == "__main__":
    main()
