"""The processes of a trial, with quick commands in place of training."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from vit_rpe.experiments.study.process import TrialProcess, cost_of


def waited(process: TrialProcess) -> int:
    until = time.monotonic() + 60
    while (code := process.poll()) is None and time.monotonic() < until:
        time.sleep(0.02)
    assert code is not None
    return code


def test_commands_run_one_after_the_other_and_cost_time(tmp_path):
    process = TrialProcess([["recipes", "list"], ["--version"]], tmp_path / "x")
    assert waited(process) == 0 and process.poll() == 0
    shown = process.log.read_text()
    assert shown.startswith("recipes, for ") and process.tail().startswith("vit_rpe ")
    lines = (tmp_path / "x" / "attempts.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["code"] for entry in entries] == [0, 0]
    assert all(0 < entry["cpu_seconds"] <= entry["seconds"] + 0.1 for entry in entries)
    cost = cost_of(tmp_path / "x")
    assert cost["seconds"] == pytest.approx(sum(each["seconds"] for each in entries), abs=0.1)


def test_the_first_that_fails_is_the_last(tmp_path):
    process = TrialProcess([["nonsense"], ["--version"]], tmp_path)
    assert waited(process) == 2
    assert process.tail().startswith("vit-rpe: error: no command") or "no command" in process.tail()
    assert "vit_rpe 0" not in process.log.read_text()


def test_a_paused_process_can_be_stopped(tmp_path):
    process = TrialProcess([["check"]], tmp_path)
    os.kill(process._process.pid, signal.SIGSTOP)
    process.stop()
    assert waited(process) in (75, -15, 0)


@pytest.mark.parametrize(("kill", "codes"), [(False, (75, -15, 0)), (True, (-9, 0))])
def test_a_stop_ends_the_process_and_begins_no_other(tmp_path, kill, codes):
    process = TrialProcess([["check"], ["--version"]], tmp_path)
    process.stop(kill)
    assert waited(process) in codes and process.poll() in codes
    process.stop(kill)  # once more, when it has ended
    assert len((tmp_path / "attempts.jsonl").read_text().splitlines()) == 1


def test_it_has_one_thread_and_our_code(tmp_path, monkeypatch):
    from vit_rpe.experiments.study.process import PACKAGE, _environment

    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = _environment()
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "1"
    assert found["PYTHONPATH"].split(":") == [str(PACKAGE.parent), "/elsewhere"]
    assert (PACKAGE / "experiments").is_dir() and PACKAGE.name == "vit_rpe"
