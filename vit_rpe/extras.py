"""Optional dependencies: one error for all of them, which says what to install.

Imports nothing of ours, so that every part of the package may use it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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


def require_extra(extra: str, purpose: str, *modules: str) -> None:
    """Raise MissingExtra if a module of an extra is not installed; none is imported.

    For packages that are of no use without: they call it before they import anything else.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(
                f"{purpose} needs {module}: pip install 'vit_rpe[{extra}]'", name=module
            )
