"""The first moments of the command `vit-rpe`, before imports that take seconds.

Imports nothing of ours, and nothing slow: the package imports it first.
"""

from __future__ import annotations

import signal
import sys
from itertools import pairwise
from pathlib import Path

TRY_AGAIN = 75  # EX_TEMPFAIL, the exit code of a run that a signal has stopped


def is_program() -> bool:
    """Return whether this process is `vit-rpe` or `python -m vit_rpe`, not one that imports us."""
    called = sys.argv[0] if sys.argv else ""
    if called == "-m":  # so it is while Python imports the package whose __main__ it will run
        return ("-m", "vit_rpe") in pairwise(sys.orig_argv)
    return Path(called).stem == "vit-rpe"


def is_training() -> bool:
    """Return whether this process is `vit-rpe train`, or `vit-rpe study`, which trains by it."""
    return is_program() and sys.argv[1:2] in (["train"], ["study"])


def stop_at_signals() -> None:
    """Let a signal end the process at once, with the code of a run that can be started again.

    A run has its own handlers as soon as there is something to save.
    """
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(TRY_AGAIN))
