"""What the command lines of the tools share: parsers, types of arguments, errors in one line."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

WRONG = 2  # the exit code of an error that was foreseen, as in train.py

# torch-geometric scripts functions when it is imported, and torch complains about each
warnings.filterwarnings("ignore", message=".*torch.jit", category=FutureWarning)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: error: {message}\n")


def described_parser(program: str, description: str | None, **options: Any) -> Parser:
    """Make a parser whose help shows the description as it is written."""
    style = argparse.RawDescriptionHelpFormatter
    return Parser(prog=program, description=description, formatter_class=style, **options)


def fail(program: str, message: object) -> NoReturn:
    """Say what is wrong in one line, and end with the exit code for it."""
    text = f"{program}: error: {' '.join(str(message).split())}"
    print(text, file=sys.stderr, flush=True)
    stop = SystemExit(text)
    stop.code = WRONG
    raise stop


@contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Let wrong input end the program with one line; other errors are ours, with a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        fail(program, error)


def positive_number(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def positive_integer(text: str) -> int:
    """Read an integer above 0."""
    return int(positive_number(str(int(text))))


def new_file(text: str) -> Path:
    """Read the path of a file that can be written."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file at {text!r}")
    return path
