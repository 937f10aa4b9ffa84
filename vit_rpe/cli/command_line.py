"""The common part of command lines: parsers, types of arguments, errors in one line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from vit_rpe.files import atomic_write
from vit_rpe.program import prefix, program

READERS = min(4, len(os.sched_getaffinity(0)))  # processes that read, unless a user says otherwise
DONE, FAILED, WRONG, DIVERGED, STOPPED = 0, 1, 2, 3, 75  # 75 is EX_TEMPFAIL: try again
INTERRUPTED = 128 + signal.SIGINT  # as a shell says it

# torch-geometric scripts functions when it is imported, and torch complains about each
warnings.filterwarnings("ignore", message=".*torch.jit", category=FutureWarning)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and takes no abbreviations."""

    def __init__(self, *args: Any, **options: Any):
        options.setdefault("allow_abbrev", False)  # one that works today is ambiguous tomorrow
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: error: {message}\n")


def described_parser(name: str, description: str | None, **options: Any) -> Parser:
    """Make a parser whose help shows the description as it is written."""
    style = argparse.RawDescriptionHelpFormatter
    return Parser(prog=name, description=description, formatter_class=style, **options)


def command_parser(command: str, text: str | None, **options: Any) -> Parser:
    """Make the parser of a subcommand; its examples name the program as it was called."""
    name = program(command)
    text = (text or "").replace(f"vit-rpe {command}", name).replace("vit-rpe ", f"{prefix()} ")
    return described_parser(name, text, **options)


def old_spelling(parser: Any, flag: str, **options: Any) -> None:
    """Take an option by a name that it had once; help does not show it."""
    parser.add_argument(flag, **{"default": argparse.SUPPRESS, **options}, help=argparse.SUPPRESS)


def say_error(name: str, message: object) -> str:
    """Say what is wrong in one line, and return it."""
    text = f"{name}: error: {' '.join(str(message).split())}"
    print(text, file=sys.stderr, flush=True)
    return text


def fail(name: str, message: object) -> NoReturn:
    """Say what is wrong in one line, and end with the exit code for it."""
    stop = SystemExit(say_error(name, message))
    stop.code = WRONG
    raise stop


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Let wrong input end the program with one line; other errors are ours, with a traceback."""
    try:
        yield
    except BrokenPipeError:  # not an error: `| head` has seen enough
        raise
    except (ValueError, OSError, ImportError) as error:
        fail(name, error)


def positive_number(text: str) -> float:
    """Read a number above 0."""
    with _wanted("a number above 0", text):
        value = float(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value


def positive_integer(text: str) -> int:
    """Read a whole number above 0."""
    with _wanted("a whole number above 0", text):
        if int(text) <= 0:
            raise ValueError
        return int(text)


def count(text: str) -> int:
    """Read a whole number that is not negative."""
    with _wanted("a whole number, 0 or more", text):
        if int(text) < 0:
            raise ValueError
        return int(text)


def fraction(text: str) -> float:
    """Read a number between 0 and 1, and neither of them."""
    with _wanted("a number between 0 and 1", text):
        value = float(text)
        if not 0 < value < 1:
            raise ValueError
        return value


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    with _wanted("a number from 0 to 1", text):
        value = float(text)
        if not 0 <= value <= 1:
            raise ValueError
        return value


def height_and_width(text: str) -> tuple[int, int]:
    """Read the size of an image: `224`, or `192x224` with the height first."""
    with _wanted("a side, or height x width as in 192x224", text):
        height, width = text.split("x") if "x" in text else (text, text)
        return positive_integer(height), positive_integer(width)


@contextmanager
def _wanted(what: str, text: str) -> Iterator[None]:
    """Let a value that cannot be read be refused in words."""
    try:
        yield
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"wanted {what}, got {text!r}") from None


def niceness(text: str) -> int:
    """Read how far a process stands back for others."""
    value = int(text)
    if not 0 <= value <= 19:
        raise argparse.ArgumentTypeError(f"wanted a number from 0 to 19, got {text!r}")
    return value


def new_file(text: str) -> Path:
    """Read the path of a file that can be written."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file at {text!r}")
    return path


def check_output(directory: Path, overwrite: bool) -> None:
    """Refuse a file, and a folder with something in it unless it may be overwritten."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is not a directory")
    if directory.is_dir() and any(directory.iterdir()) and not overwrite:
        raise ValueError(f"{directory} is not empty; --overwrite writes there all the same")


def write_json(path: Path, value: Any) -> None:
    """Write what `--json FILE` asks for."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())
