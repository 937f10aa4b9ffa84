"""Values and texts of others in messages: one line, and no longer than people read.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any

LONGEST = 1000  # characters of a message
LONGEST_VALUE = 200  # characters of a value in it

_repr = Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxtuple, _repr.maxdict = 3, 10, 10, 10
_repr.maxstring = _repr.maxother = _repr.maxlong = LONGEST_VALUE


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
