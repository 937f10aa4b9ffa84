"""The command `vit-rpe` itself: its subcommands, their help, wrong names, what it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import vit_rpe
from vit_rpe.cli import COMMANDS, main, run
from vit_rpe.extras import MissingExtra

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def name_of_the_program():
    """Later tests find the program's name as it was."""
    yield
    vit_rpe.program.set_program("vit-rpe")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys, arguments):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: vit-rpe COMMAND ...\n")
    assert all(f"\n  {name} " in shown and text in shown for name, text in COMMANDS.items())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vit_rpe {vit_rpe.__version__}\n"


@pytest.mark.parametrize(
    ("name", "close"), [("evalute", "; nearest is 'evaluate'"), ("xyz", "; there are train, ")]
)
def test_an_unknown_command_names_the_nearest(capsys, name, close):
    assert main([name]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"vit-rpe: error: no command {name!r}{close}") and shown[-1:] == "\n"
    assert shown.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(capsys, name):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and shown.startswith(f"usage: vit-rpe {name} ")
    assert f"\n    vit-rpe {name} " in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_calls_itself_as_it_was_called(capsys, name):
    with pytest.raises(SystemExit):
        main([name, "--help"], typed="python -m vit_rpe")
    shown = capsys.readouterr().out
    assert "vit-rpe" not in shown and shown.startswith(f"usage: python -m vit_rpe {name} ")
    with pytest.raises(SystemExit):
        run(name, ["--help"], called="x.py")
    shown = capsys.readouterr().out
    assert shown.startswith("usage: x.py ") and "\n    x.py " in shown


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "check"])
def test_no_arguments_are_wrong_input(capsys, name):
    try:
        code = main([name])
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr().err
    assert code == 2 and shown.startswith(f"vit-rpe {name}") and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MissingExtra("x needs y"), 2, "vit-rpe recipes: error: x needs y\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_ends_that_all_commands_share(monkeypatch, capsys, error, code, line):
    def fail(_: list[str]) -> int:
        raise error

    monkeypatch.setattr(import_module("vit_rpe.cli.recipes"), "main", fail)
    assert main(["recipes"]) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("arguments", [["--help"], ["recipes", "list"], ["nonsense"]])
def test_what_needs_no_models_imports_nothing_slow(arguments):
    code = (
        "import sys; sys.argv[0] = 'vit-rpe'; from vit_rpe.cli import main; "
        f"main({arguments}); print(sorted({{'torch', 'timm', 'numpy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done


def test_python_m_and_pipes():
    command = f"{sys.executable} -m vit_rpe recipes list | head -1"
    done = subprocess.run(command, cwd=ROOT, shell=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (
        "recipes, for `python -m vit_rpe train --recipe NAME`\n",
        "",
    )
