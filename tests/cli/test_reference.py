"""docs/commands.md says what the commands take, all of it, and help is fit to be read."""

from __future__ import annotations

import pytest

from tests.cli.reference import PAGE, arguments, name_of, parsers_of, updated
from vit_rpe.cli import COMMANDS

TEXT = PAGE.read_text()


def test_the_tables_are_those_of_the_parsers():
    assert updated(TEXT) == TEXT, "python -m tests.cli.reference"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_examples_and_its_options(command):
    _, found, section = TEXT.partition(f"\n## {command}\n")
    section = section.partition("\n## ")[0]
    assert found and f"vit-rpe {command} " in section.partition("```sh")[2]
    assert f"<!-- options of {command} -->" in section


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_explains_every_option(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    first, *kinds = parsers_of(command)
    text = first.format_help()
    assert f"\n    vit-rpe {command} " in text and first.prog == f"vit-rpe {command}"
    assert max(map(len, text.splitlines())) <= 101, "examples and all else fit on a screen"
    for parser in (first, *kinds):
        assert parser.description
        for action in arguments(parser):
            has_kinds = action.nargs == "A..."
            assert action.help or has_kinds, f"{parser.prog} {name_of(action)}"
