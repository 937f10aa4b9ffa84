"""The name of the running program, and how another command would be typed.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

import shlex

_typed, _name = "vit-rpe", ""  # a process has one program, and it says so once


def set_program(typed: str, name: str = "") -> None:
    """Remember how commands are typed (`python -m vit_rpe`), and a name of its own (`train.py`)."""
    global _typed, _name
    _typed, _name = typed, name


def program(command: str) -> str:
    """Return the name of the program that runs this command: `vit-rpe train`, `train.py`."""
    return _name or f"{_typed} {command}"


def prefix() -> str:
    """Return what is typed before the name of a command."""
    return _typed


def typed(command: str, *arguments: object) -> str:
    """Return a command line that runs another command, for messages that recommend it."""
    return f"{_typed} {shlex.join([command, *map(str, arguments)])}"
