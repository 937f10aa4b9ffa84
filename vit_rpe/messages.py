"""Values and texts of others in messages: one line, and no longer than people read.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

LONGEST = 1000  # characters of a message
LONGEST_VALUE = 200  # characters of a value in it
LABEL = 12  # characters before the text of an entry

_repr = Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxtuple, _repr.maxdict = 3, 10, 10, 10
_repr.maxstring = _repr.maxother = _repr.maxlong = LONGEST_VALUE


def entry(label: str, *lines: object) -> str:
    """Return an entry of a summary, in aligned lines: `model       resnet18`."""
    first, *others = map(str, lines)
    return "\n".join([f"{label:<{LABEL}}{first}", *(" " * LABEL + line for line in others)])


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 step`, `1,442 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown(value: Any) -> str:
    """Show a value as `repr` does, with dots in long and nested ones, which it does not walk."""
    try:
        return short(_repr.repr(value), LONGEST_VALUE)
    except ValueError:  # Python does not print integers of more than some 4,000 digits
        return "an integer of thousands of digits"


def cut(text: object) -> str:
    """Shorten a message to one line; beginning and end are kept."""
    return short(" ".join(str(text).split()))


def short(line: str, longest: int = LONGEST) -> str:
    """Leave out the middle of a line that is too long."""
    half = (longest - 5) // 2
    return line if len(line) <= longest else f"{line[:half]} ... {line[-half:]}"


def printable(text: str) -> str:
    """Escape what would move the cursor, or is no character at all."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; nearest is 'x'`, or nothing if no known name is close."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; nearest is {found[0]!r}" if found else ""
