"""The page: one HTML file with its styles, its program and its content, and nothing from outside.

The content is data, never code: it is in a block of JSON in which no `<` stands as it is, and the
program writes it as text. The page's own rule (Content-Security-Policy) lets nothing be loaded,
and nothing run but this program, by its checksum.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from vit_rpe.files import atomic_write

from .content import LIMIT, as_json, content_of
from .run import read_run
from .subject import Subject, subject_of_run

NAME = "report.html"
SCRIPTS = (
    "dom",
    "heat",
    "charts",
    "summary",
    "recipe",
    "answers",
    "masks",
    "rows",
    "explorer",
    "main",
)


def write_report(
    runs: str | Path | Sequence[str | Path], output: str | Path | None = None, limit: int = LIMIT
) -> Path:
    """Make the report of a run, or of several compared; return its path.

    By default it is in the folder of the (first) run: report.html.
    """
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    if not folders:
        raise ValueError("a report is about one run or more, got none")
    records = [read_run(folder) for folder in folders]
    path = records[0].folder / NAME if output is None else Path(output)
    return write_page([subject_of_run(record) for record in records], path, limit)


def write_page(subjects: Sequence[Subject], path: Path, limit: int = LIMIT) -> Path:
    """Make the page of some subjects."""
    with atomic_write(path) as file:
        file.write(page(content_of(subjects, limit)).encode())
    return path


def page(content: dict[str, Any]) -> str:
    """Return a page with this content."""
    title = ", ".join(run["name"] for run in content["runs"])
    script, style = _assets()
    rules = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"script-src {_checksum(script)}",
            f"style-src {_checksum(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = {
        "TITLE": escape(title),
        "RULES": escape(rules, quote=True).replace("&#x27;", "'"),
        "STYLE": style,
        "SCRIPT": script,
        "CONTENT": as_json(content),
    }
    parts = _asset("page.html").split("@@")  # odd parts are names
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


@cache
def _assets() -> tuple[str, str]:
    scripts = (_asset(f"{name}.js") for name in SCRIPTS)
    return "\n".join(['"use strict";', *scripts]), _asset("style.css")


def _asset(name: str) -> str:
    return files("vit_rpe.report").joinpath("assets", name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
