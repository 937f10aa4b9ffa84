"""Optional dependencies: one error for all of them, which says what to install.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtra(ImportError):
    """An optional dependency that is not installed; the message says how to install it."""


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an extra; MissingExtra if it is not there.

    av = import_extra("av", "video", "decoding video files")
    MissingExtra: decoding video files needs av: pip install 'vit_rpe[video]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        # a module that is there and fails to import says more than its name
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        missing = error.name or module
        raise MissingExtra(
            f"{purpose} needs {missing}{reason}: pip install 'vit_rpe[{extra}]'", name=missing
        ) from error
