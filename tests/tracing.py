"""Which of our files a piece of work passes through."""

import sys
from collections.abc import Callable
from pathlib import Path

import vit_rpe

PACKAGE = Path(vit_rpe.__file__).parent


def files_of(work: Callable[[], object]) -> list[str]:
    """The files of the package that `work` enters, in the order of their first call."""
    seen: dict[str, None] = {}
    root = f"{PACKAGE}/"

    def note(frame, event, _) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(root):
            seen.setdefault(name.removeprefix(root))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return list(seen)
