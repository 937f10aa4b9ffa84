"""The line of a finished trial: what it was, what came out, by which code."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vit_rpe
from vit_rpe.training import Recipe, read_summary

from .check import Setting
from .file import Study
from .process import PACKAGE, cost_of
from .trials import Trial, settings_of

SIZES = "sizes.json"  # in the folder of a trial: what `vit-rpe evaluate` says about other sizes


def record_of(
    study: Study, trial: Trial, recipe: Recipe, setting: Setting, folder: Path
) -> dict[str, Any]:
    """Make the line of a trial from what its run has left in its folder."""
    record: dict[str, Any] = {
        "study": study.name,
        "trial": trial.name,
        "levels": dict(trial.levels),
        "seed": trial.seed,
        "overrides": trial.changes,
        "settings": settings_of(recipe),
        "split": study.split,
        "val_fraction": study.val_fraction,
        "epochs": read_summary(folder),
    }
    if study.sizes:
        rows = json.loads((folder / SIZES).read_text())
        record["sizes"] = {str(row["img_size"]): row["top1"] for row in rows}
    record.update(parameters=setting.parameters, steps=setting.steps)
    record.update(cost_of(folder))
    record["finished"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {**record, "machine": machine(), "versions": versions(), **revision()}


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


@cache
def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("torch", "timm")}
    return {"python": platform.python_version(), "vit_rpe": vit_rpe.__version__, **found}


@cache
def revision() -> dict[str, Any]:
    """Return the commit of the code, and whether the code differs from it; null without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"revision": commit[:12], "modified": bool(_git("status", "--porcelain", "."))}
    except (OSError, subprocess.CalledProcessError):
        return {"revision": None, "modified": None}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
