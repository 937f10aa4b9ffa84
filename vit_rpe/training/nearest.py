"""The name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """`; nearest is 'x'`, or nothing where no known name is close."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; nearest is {found[0]!r}" if found else ""
