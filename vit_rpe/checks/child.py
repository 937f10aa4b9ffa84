"""Another process of this Python that prints one line of JSON for each result."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any


class ChildError(RuntimeError):
    """The last line of what a process said that did not end well."""


def json_lines(module: str, *words: str, environment: Mapping[str, str]) -> Iterator[Any]:
    """Run a module, and yield what it prints, as soon as it does."""
    command = [sys.executable, "-W", "ignore", "-m", module, *words]
    # a compiler that fails may say more than a pipe holds
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            yield from map(json.loads, process.stdout)
        if process.returncode:
            said.seek(0)
            last = said.read().strip().rpartition("\n")[2]
            raise ChildError(last or f"exit code {process.returncode}")
