"""What every tool promises: wrong input gives one line and exit code 2, help gives no warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit_rpe.cli.command_line import one_line_errors

TOOLS = Path(__file__).parents[2] / "tools"


def test_what_was_foreseen_ends_with_code_2_and_one_line(capsys):
    for error in (ValueError("a\nb"), FileNotFoundError(2, "no such file"), ImportError("c")):
        with pytest.raises(SystemExit) as stop, one_line_errors("x"):
            raise error
        shown = capsys.readouterr().err
        assert stop.value.code == 2 and shown.startswith("x: error: ")
        assert shown.count("\n") == 1
    with pytest.raises(ZeroDivisionError), one_line_errors("x"):
        raise ZeroDivisionError


def test_no_tool_ends_in_a_way_of_its_own():
    for tool in TOOLS.rglob("*.py"):
        text = tool.read_text()
        assert "sys.exit(f" not in text and "raise SystemExit(f" not in text, tool.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demos/graphs", "bench/gkat"])
def test_help_says_nothing_about_other_packages(name):
    pytest.importorskip("torch_geometric")
    command = [sys.executable, str(TOOLS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and "usage:" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bench/train", "demos/conversion", "figures/masks", "evaluate", "self_check"]
)
def test_a_tool_finds_its_helpers_from_anywhere(name, tmp_path):
    command = [sys.executable, str(TOOLS / f"{name}.py"), "--help"]
    free = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=free, capture_output=True, timeout=120)
    assert done.returncode == 0 and b"usage:" in done.stdout, done.stderr
