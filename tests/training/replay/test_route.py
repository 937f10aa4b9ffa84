"""The way to a step: the nearest checkpoint of the run's own, and a leg for each of its starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vit_rpe.training import CheckpointError
from vit_rpe.training.record.integrity import VERSION
from vit_rpe.training.replay import route
from vit_rpe.training.replay.history import History, Start
from vit_rpe.training.replay.route import find_route


@pytest.fixture(autouse=True)
def damaged(monkeypatch) -> set[str]:
    """Names of checkpoints that are not whole."""
    names: set[str] = set()

    def check(folder: Path) -> None:
        if folder.name in names:
            raise CheckpointError(f"{folder.name} is damaged")

    monkeypatch.setattr(route, "check_whole", check)
    return names


def history(folder: Path, *starts: int, resume: str | None = None) -> History:
    recipe: Any = SimpleNamespace(resume=resume)
    return History(folder, [Start(step, recipe) for step in starts or (0,)], {}, {}, 99)


def keep(folder: Path, name: str, step: int, serial: int, *written: str) -> None:
    state = {
        **{"version": VERSION, "progress": {"state": {"step": step, "epoch": 0}}, "sha256": {}},
        **{"optimizer": {}, "serial": serial, "written": [*written, name]},
    }
    (folder / "checkpoints" / name).mkdir(parents=True)
    (folder / "checkpoints" / name / "state.json").write_text(json.dumps(state))


def test_the_nearest_whole_checkpoint(tmp_path, damaged):
    keep(tmp_path, "epoch-0001", 10, 1)
    keep(tmp_path, "step-00000014", 14, 2, "epoch-0001")
    keep(tmp_path, "epoch-0002", 20, 3, "epoch-0001", "step-00000014")
    run = history(tmp_path)
    assert find_route(run, 15).text() == "1 step from step-00000014"
    assert find_route(run, 14).text() == "4 steps from epoch-0001"  # it is made, not loaded
    assert find_route(run, 10).text() == "10 steps from the beginning"
    assert find_route(run, 15, whole=True).text() == "15 steps from the beginning"
    damaged.add("step-00000014")
    found = find_route(run, 15)
    assert found.begin == 10 and found.notes == ["step-00000014 is damaged; passed by"]


def test_what_another_resume_has_left_behind_is_passed_by(tmp_path):
    keep(tmp_path, "epoch-0001", 10, 1)
    keep(tmp_path, "epoch-0002", 20, 2, "epoch-0001")
    keep(tmp_path, "epoch-0003", 30, 3, "epoch-0001")  # resumed from the first
    assert find_route(history(tmp_path, 0, 10), 25).text() == "15 steps from epoch-0001"


def test_a_leg_for_each_start(tmp_path):
    keep(tmp_path, "epoch-0001", 10, 1)
    run = history(tmp_path, 0, 0, 12, 20)
    legs = [(leg.start.step, leg.begin, leg.end) for leg in find_route(run, 25).legs]
    assert legs == [(0, 10, 12), (12, 12, 20), (20, 20, 25)]
    legs = [(leg.start.step, leg.begin, leg.end) for leg in find_route(run, 5).legs]
    assert legs == [(0, 0, 5)]


def test_a_run_that_took_up_another_run(tmp_path):
    run = history(tmp_path, 10, resume="other/checkpoints/last")
    with pytest.raises(CheckpointError, match="began after step 10 of other/checkpoints/last"):
        find_route(run, 10)
    with pytest.raises(CheckpointError, match="keeps no checkpoint before step 12"):
        find_route(run, 12)
    keep(tmp_path, "epoch-0002", 20, 1)
    assert find_route(run, 21).begin == 20
