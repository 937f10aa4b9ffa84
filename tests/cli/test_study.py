"""`vit-rpe study` as a user types it: a real tiny study, stopped and resumed; wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.study.studies import write
from vit_rpe.cli.study import main

ROOT = Path(__file__).parents[2]
SMALL = {
    "factors": {"mask": {"none": {"model_kwargs.rpe": "none"}, "offset": None}},
    "blocks": [{"levels": {"mask": ["none", "offset"]}}],
    "comparisons": [{"name": "gain", "this": {"mask": "offset"}, "minus": {"mask": "none"}}],
    "sizes": [12],
}


def arguments(folder: Path) -> list[str]:
    return [
        *(str(folder / "small.yaml"), f"data_dir={folder / 'digits'}"),
        *("--output", str(folder / "small.jsonl"), "--runs", str(folder / "runs")),
    ]


@pytest.mark.slow
def test_a_real_study_is_stopped_and_goes_on(tmp_path, capsys):
    overrides = {"epochs": 20, "log_interval": 1, "model_kwargs.depth": 1}
    write(tmp_path, overrides=overrides, seeds=[0], **SMALL)
    command = [sys.executable, "-m", "vit_rpe", "study", *arguments(tmp_path), "--nice", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    logs = [tmp_path / "runs" / "small" / f"{m}-seed0" / "log.jsonl" for m in ("none", "offset")]
    until = time.monotonic() + 240
    while not all(log.exists() and log.stat().st_size > 0 for log in logs):
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    shown = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 75, shown
    assert "stopped, and all trials saved; the same command goes on" in shown
    assert not (tmp_path / "small.jsonl").exists()
    before = [steps(log) for log in logs]
    assert all(0 < each < 20 * 22 for each in before)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    assert {line["trial"] for line in lines} == {"none-seed0", "offset-seed0"}
    for line in lines:
        assert [row["epoch"] for row in line["epochs"]] == list(range(1, 21))
        assert line["epochs"][-1]["eval_top1"] > 30 and 0 < line["sizes"]["12"] < 100
        attempts = tmp_path / "runs" / "small" / line["trial"] / "attempts.jsonl"
        codes = [json.loads(each)["code"] for each in attempts.read_text().splitlines()]
        assert codes == [75, 0, 0], "it went on, and then was evaluated"
    assert main([*arguments(tmp_path), "--report"]) == 0
    assert "| gain | 1 | " in capsys.readouterr().out


def steps(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return max(line["step"] for line in lines)


def test_a_dry_run_lists_trials_and_their_cost(tmp_path, capsys):
    write(tmp_path, seeds=[0, 7], **SMALL)
    assert main([*arguments(tmp_path), "--dry-run", "--jobs", "4"]) == 0
    shown = capsys.readouterr().out
    for name in ("none-seed0", "offset-seed0", "none-seed7", "offset-seed7"):
        assert f"\n{name}  " in f"\n{shown}"
    assert "5 steps, about " in shown and "4 trials, 4 left: about " in shown
    assert not (tmp_path / "runs").exists() and not (tmp_path / "small.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["seed=1"], "'seed=1': seed is set by the study"),
        (["lrr=1"], "no key 'lrr'"),
        (["--jobs", "0"], "--jobs"),
        (["--nice", "20"], "wanted a number from 0 to 19, got '20'"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, capsys, more, message):
    write(tmp_path, **SMALL)
    with pytest.raises(SystemExit) as stop:
        main([*arguments(tmp_path), *more])
    shown = capsys.readouterr().err
    assert stop.value.code == 2 and message in shown and shown.count("\n") == 1
    assert shown.startswith("vit-rpe study: error: ")


def test_a_page_without_marks_is_refused(tmp_path, capsys):
    write(tmp_path, **SMALL)
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(SystemExit) as stop:
        main([*arguments(tmp_path), "--report", "--into", str(page)])
    assert stop.value.code == 2 and "wanted the lines <!-- study: small -->" in str(stop.value)
