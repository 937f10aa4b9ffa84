"""The real commands: `accelerate launch` with two processes, plain python; all exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import train
from tests.training.runs import RICH, assert_same_run, make_data, progress, write_recipe
from vit_rpe.cli.train import main
from vit_rpe.data import FolderBusy
from vit_rpe.training import Stopped
from vit_rpe.training.errors import Miscounted

ROOT = Path(__file__).parents[2]


LAUNCH = ["-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/cpu_x2.yaml"]


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def end(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=120)[0]
    finally:
        process.kill()


@pytest.mark.slow
def test_accelerate_launch_is_stopped_and_goes_on(tmp_path):
    """SIGTERM to the launcher saves on both ranks; the second launch ends bit-equal."""
    values = {**RICH, "data_dir": make_data(tmp_path / "data"), "output": str(tmp_path)}
    recipe = write_recipe(tmp_path / "a.yaml", **values, epochs=60, resume="auto")
    command = [*LAUNCH, "train.py", "--recipe", recipe]
    log, process = tmp_path / "a" / "log.jsonl", start(*command)
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        if log.exists() and log.read_text().count("\n") > 20:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    shown = end(process)
    assert process.returncode != 0 and "resume=auto continues from there" in shown, shown[-3000:]
    stopped = progress(tmp_path / "a")["step"]
    assert 10 < stopped < 300 and shown.count("stopped by a signal after step") == 1
    process = start(*command)
    shown = end(process)
    assert process.returncode == 0, shown
    assert train("--recipe", recipe, "experiment=whole", world=2)[0] == 0
    assert_same_run(tmp_path / "a", tmp_path / "whole")


@pytest.mark.slow
def test_plain_python_makes_the_digits_and_says_what_it_would_do(tmp_path):
    process = start(
        *("train.py", "--recipe", "recipes/quickstart.yaml", "--dry-run"),
        *(f"data_dir={tmp_path / 'digits'}", f"output={tmp_path}"),
    )
    shown = end(process)
    assert process.returncode == 0, shown
    for line in (
        "samples of train, 355 of val; 10 classes",
        "epoch       22 steps",
        "batch       64 samples",
        "model       performer_rpe2d_tiny_patch16_224, 203,",
        "FLOPs       0.00",
        "a step, an evaluation and a checkpoint: passed",
    ):
        assert line in shown
    assert (tmp_path / "digits" / "_info.json").exists()
    assert not (tmp_path / "quickstart").exists(), "a dry run leaves no run behind"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--recipe is required (quickstart is a good first one)"),
        (["--recip"], "unrecognized|expected|required"),
        (["--nonsense", "--recipe", "x"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_command_line_gives_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1
    assert any(part in error for part in message.split("|"))


@pytest.mark.parametrize(
    ("name", "close"), [("nowhere.yaml", ""), ("x/qickstart.yaml", "; nearest is 'quickstart'")]
)
def test_a_recipe_that_is_not_there(capsys, name, close):
    assert main(["--recipe", name]) == 2
    others = f"{close}; vit-rpe recipes list prints those that are shipped"
    wanted = f"vit-rpe train: error: {name}: no such recipe{others}\n"
    assert capsys.readouterr().err == wanted


def test_a_signal_while_the_package_is_imported(tmp_path):
    """As `train.py`, and as `python -m vit_rpe train`, which `accelerate launch -m` starts, too."""
    (tmp_path / "timm.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)")
    folders = f"{tmp_path}{os.pathsep}{ROOT}"
    assert code_after_a_signal(["-m", "vit_rpe", "train", "--recipe", "x"], folders) == 75
    assert code_after_a_signal([str(ROOT / "train.py"), "--recipe", "x"], folders) == 75
    assert code_after_a_signal(["-m", "vit_rpe", "check"], folders) == -signal.SIGTERM


def code_after_a_signal(arguments: list[str], folders: object) -> int:
    """The exit code of a process that gets SIGTERM when it has said that it imports."""
    environment = {**os.environ, "PYTHONPATH": str(folders)}
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        return process.wait(10)
    finally:
        process.kill()


def test_next_commands_are_those_that_one_would_type(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vit_rpe.cli.train.train", lambda *_: None)
    recipe = write_recipe(tmp_path / "a b.yaml", data_dir="my data", output=str(tmp_path))
    assert main(["--recipe", recipe, "epochs=7", "lr=1e-3", "val_split=test"]) == 0
    shown = capsys.readouterr().err
    evaluate = f"vit-rpe evaluate --checkpoint '{tmp_path}/a b' --data 'my data' --split test\n"
    more = f"vit-rpe train --recipe '{recipe}' lr=1e-3 val_split=test resume=auto epochs=14 "
    assert evaluate in shown and more in shown
    monkeypatch.setenv("WORLD_SIZE", "2")  # a launcher has been typed before
    assert main(["--recipe", recipe, "epochs=7"]) == 0
    assert "the same command with resume=auto epochs=14   # more" in capsys.readouterr().err


ENDS = [
    (Miscounted("1 missed"), 1, "vit-rpe train: error in the program: 1 missed"),
    (FolderBusy("in use"), 2, "vit-rpe train: error: in use"),
    (
        OSError(28, "No space left on device", "x"),
        2,
        "vit-rpe train: error: [Errno 28] No space left",
    ),
    (Stopped("stopped"), 75, "stopped; resume=auto continues from there: vit-rpe train --recipe "),
    (KeyboardInterrupt(), 130, "ended by a second Ctrl-C; resume=auto continues from the last"),
]


@pytest.mark.parametrize(("error", "code", "message"), ENDS, ids=lambda v: str(v)[:20])
def test_each_end_has_its_code_and_its_line(tmp_path, monkeypatch, capsys, error, code, message):
    def train(*_: Any) -> None:
        raise error

    monkeypatch.setattr("vit_rpe.cli.train.train", train)
    recipe = write_recipe(tmp_path / "a.yaml", data_dir="x")
    assert main(["--recipe", recipe]) == code
    shown = capsys.readouterr().err
    assert shown.startswith(message) and shown.count("\n") == 1
