"""What every tool promises: wrong input gives one line and exit code 2, help gives no warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.loading import TOOLS, loaded


def test_what_was_foreseen_ends_with_code_2_and_one_line(capsys):
    with loaded("command_line") as tool:
        for error in (ValueError("a\nb"), FileNotFoundError(2, "no such file"), ImportError("c")):
            with pytest.raises(SystemExit) as stop, tool.one_line_errors("x"):
                raise error
            shown = capsys.readouterr().err
            assert stop.value.code == 2 and shown.startswith("x: error: ")
            assert shown.count("\n") == 1
        with pytest.raises(ZeroDivisionError), tool.one_line_errors("x"):
            raise ZeroDivisionError


def test_no_tool_ends_in_a_way_of_its_own():
    for tool in TOOLS.glob("*.py"):
        text = tool.read_text()
        assert "sys.exit(f" not in text and "raise SystemExit(f" not in text, tool.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_demo", "bench_gkat"])
def test_help_says_nothing_about_other_packages(name):
    pytest.importorskip("torch_geometric")
    command = [sys.executable, str(Path(TOOLS) / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and "usage:" in done.stdout
