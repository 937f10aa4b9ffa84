"""The first moments of the command `vit-rpe`, before imports that take seconds.

Imports nothing of ours, and nothing slow: the package imports it first.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

TRY_AGAIN = 75  # EX_TEMPFAIL, the exit code of a run that a signal has stopped
_SPINS = "1000"  # some microseconds; by default a thread spins until another has its turn
_TRAIN = Path(__file__).parents[1] / "train.py"  # of a checkout


def is_program() -> bool:
    """Return whether this process is `vit-rpe` or `python -m vit_rpe`, not one that imports us."""
    called = sys.argv[0] if sys.argv else ""
    if called == "-m":  # so it is while Python imports the package whose __main__ it will run
        return ("-m", "vit_rpe") in pairwise(sys.orig_argv)
    return Path(called).stem == "vit-rpe"


def is_training() -> bool:
    """Return whether this process is `vit-rpe train`, `train.py` or a study, which trains by it."""
    if sys.argv and Path(sys.argv[0]).resolve() == _TRAIN:
        return True
    return is_program() and sys.argv[1:2] in (["train"], ["study"])


def yield_cores() -> None:
    """Let torch's threads sleep soon where they wait for each other; before torch is loaded.

    Threads that spin keep those they wait for from a core that is shared with other programs: small
    models then train twenty times slower.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def stop_at_signals() -> None:
    """Let a signal end the process at once, with the code of a run that can be started again.

    A run has its own handlers as soon as there is something to save.
    """
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(TRY_AGAIN))
