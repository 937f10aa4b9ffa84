"""Where a run comes from: command, recipe, machine, versions, the state of the code."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_rpe.program import prefix

from ..run import Run

PACKAGES = ("vit_rpe", "torch", "torchvision", "timm", "accelerate", "numpy", "webdataset")
GIT_PATIENCE = 5.0  # seconds


def origin(run: Run, net: nn.Module, data: str | None = None) -> dict[str, Any]:
    """Return where a run comes from, as plain JSON; `data` is the digest of its shards.

    All keys of the recipe are there as they are from this start on: some may change at the next.
    """
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return {
        **surroundings(),
        "recipe": {key: value for key, value in run.provenance.items() if key != "plan"},
        "settled": run.recipe.model_dump(),
        "data": data,
        "processes": {
            "world_size": run.world_size,
            "device": device_name(run.device),
            "precision": str(run.precision),
            "threads": torch.get_num_threads(),
            "workers": run.recipe.workers,
        },
        "model": {"parameters": parameters, "plan": run.provenance.get("plan")},
    }


def surroundings() -> dict[str, Any]:
    """Return what this process is, on which machine, with which code, as plain JSON."""
    return {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "git": git_state(Path.cwd()),
    }


def command() -> str:
    """Return the command line of this process, as it would be typed."""
    first, *rest = sys.argv or [""]
    name = Path(first).name
    own = name in ("__main__.py", "vit-rpe")  # `python -m vit_rpe` has the name of its file
    return f"{prefix() if own else shlex.quote(name)} {shlex.join(rest)}".strip()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, Any]:
    """Return what kind of machine this is; not its name."""
    return {"system": platform.platform(terse=True), "cpu": _cpu(), "cores": os.cpu_count()}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the code around a folder, and whether it was changed since."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    return {
        "commit": commit,
        "branch": branch,
        "changed": None if changed is None else bool(changed),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": GIT_PATIENCE}
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(["git", *arguments], cwd=folder, env=quiet, **options)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or the kind of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
