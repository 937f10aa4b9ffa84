"""The report at the end of a command: made on the main process, and never a reason to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vit_rpe.messages import cut, entry
from vit_rpe.program import program
from vit_rpe.training import launched_rank, say


def add_report(command: str, make: Callable[[], Path]) -> None:
    """Make a report and name it; whatever goes wrong is one warning: the work itself is done."""
    if launched_rank() != 0:
        return
    try:
        path, here = make(), Path.cwd()
        say(entry("report", path.relative_to(here) if path.is_relative_to(here) else path))
    except KeyboardInterrupt:
        say(f"{program(command)}: warning: no report was made: interrupted")
    except Exception as error:  # files, data and models of others raise many kinds
        reason = cut(error) or type(error).__name__
        say(f"{program(command)}: warning: no report was made: {reason}")
