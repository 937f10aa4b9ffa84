"""What every command promises: wrong input gives one line and exit code 2, and nothing is made."""

from __future__ import annotations

import json

import pytest

from vit_rpe.cli import COMMANDS, main

MISSING = {  # a file that is not there
    "train": ["--recipe", "nowhere.yaml"],
    "evaluate": ["--checkpoint", "nowhere", "--data", "nowhere"],
    "shards": ["folder", "nowhere", "shards"],
    "recipes": ["show", "nowhere"],
    "convert": ["--checkpoint", "nowhere", "--output", "model"],
    "inflate": ["--checkpoint", "nowhere", "--output", "model"],
    "check": None,  # it reads no file
    "predict": ["nowhere.jpg", "--checkpoint", "nowhere"],
    "export": ["--checkpoint", "nowhere", "--output", "model.onnx"],
    "study": ["nowhere"],
    "graphs": None,  # a table that is not there is a wrong value
    "report": ["nowhere"],
    "replay": ["nowhere", "--step", "1"],
}
VALUES = {  # a value that cannot be, and what is wanted
    "train": (["--recipe", "quickstart", "epochs=-1"], "epochs"),
    "evaluate": (["--model", "resnet10t", "--data", "x", "--batch-size", "0"], "--batch-size"),
    "shards": (["digits", "shards", "--workers", "0"], "wanted a whole number above 0, got '0'"),
    "recipes": (["nonsense"], "invalid choice: 'nonsense'"),
    "convert": (["--model", "x", "--output", "model", "--img-size", "8x"], "--img-size: wanted a"),
    "inflate": (["--checkpoint", "x", "--output", "model", "--num-frames", "a"], "--num-frames"),
    "check": (["--grid", "0", "3"], "--grid: wanted a whole number above 0, got '0'"),
    "predict": (["x.jpg", "--checkpoint", "x", "--top-k", "0"], "--top-k"),
    "export": (["--checkpoint", "x", "--output", "model.onnx", "--nonsense", "0"], "--nonsense"),
    "study": (["digits_masks", "--jobs", "0"], "--jobs: wanted a whole number above 0, got '0'"),
    "graphs": (["nonsense"], "nonsense"),
    "report": (["x", "--limit", "0"], "--limit"),
    "replay": (["x", "--first", "los > 1"], "--first: no figure of a step is called 'los'"),
}


def ends(capsys, *arguments: str) -> tuple[int, str, str]:
    """The exit code of a command line, and what it printed."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    assert isinstance(code, int)
    return code, shown.out, shown.err


def refused(capsys, folder, monkeypatch, *arguments: str) -> str:
    """The line with which a command line is refused."""
    monkeypatch.chdir(folder)
    code, out, err = ends(capsys, *arguments)
    assert code == 2 and not out, (code, out)
    assert err.count("\n") == 1 and err.startswith(f"vit-rpe {arguments[0]}"), err
    assert ": error: " in err
    assert not list(folder.iterdir()), "nothing is left behind"
    return err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_not_there(command, capsys, tmp_path, monkeypatch):
    arguments = MISSING[command] or (["motifs"] if command == "graphs" else [])
    line = refused(capsys, tmp_path, monkeypatch, command, *arguments, "--no-such-option")
    assert "--no-such-option" in line


@pytest.mark.parametrize("command", [name for name in COMMANDS if MISSING[name] is not None])
def test_a_file_that_is_not_there(command, capsys, tmp_path, monkeypatch):
    assert "nowhere" in refused(capsys, tmp_path, monkeypatch, command, *(MISSING[command] or []))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_that_cannot_be(command, capsys, tmp_path, monkeypatch):
    arguments, part = VALUES[command]
    assert part in refused(capsys, tmp_path, monkeypatch, command, *arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_no_error(command, capsys):
    code, out, err = ends(capsys, command, "--help")
    assert code == 0 and out.startswith(f"usage: vit-rpe {command} ") and not err


def test_a_number_is_refused_in_words(capsys, tmp_path, monkeypatch):
    base = ("shards", "folder", "photos", "shards")
    for option, value, wanted in (
        ("--val-fraction", "1.5", "a number between 0 and 1"),
        ("--max-bad", "-1", "a number from 0 to 1"),
        ("--seed", "-1", "a whole number, 0 or more"),
        ("--img-size", "1.5", "a whole number above 0"),
    ):
        line = refused(capsys, tmp_path, monkeypatch, *base, option, value)
        assert f"{option}: wanted {wanted}, got {json.dumps(value)}".replace('"', "'") in line
