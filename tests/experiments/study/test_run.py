"""Runs of trials that train nothing: what is written, stopped, tried again, refused."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.experiments.study.studies import Stub, known_settings, plan, value_of
from vit_rpe.experiments import StudyError, run_study
from vit_rpe.experiments.study.live import Board, hours, last_line

NAMES = ["relu-none", "relu-offset", "square-none", "square-offset"]


@pytest.fixture(autouse=True)
def no_niceness(monkeypatch):
    monkeypatch.setattr(os, "nice", lambda _: 0)


@pytest.fixture
def assembled():
    """Ask for the real check."""


def stubs(planned, **how):
    """A function that starts stubs, and the stubs that it started, by name."""
    begun: dict[str, Stub] = {}

    def start(trial):
        options = how.get(trial.setting.replace("-", "_"), {})
        begun[trial.name] = Stub(planned.folder(trial), value_of(trial), **options)
        return begun[trial.name]

    return start, begun


@pytest.fixture(autouse=True)
def quick(monkeypatch, request):
    """Assemble nothing, except in tests that ask for the check."""
    if "assembled" not in request.fixturenames:
        monkeypatch.setattr("vit_rpe.experiments.study.run.check_settings", known_settings)
    monkeypatch.setattr("vit_rpe.experiments.study.queue.time.sleep", lambda _: None)


def lines(planned):
    return [json.loads(line) for line in planned.results.path.read_text().splitlines()]


def test_a_finished_trial_is_one_line(tmp_path):
    planned = plan(tmp_path)
    start, begun = stubs(planned)
    assert run_study(planned, 3, start=start) == ([], False)
    found = lines(planned)
    assert (
        [line["trial"] for line in found] == [trial.name for trial in planned.trials] == list(begun)
    )
    line = found[-1]
    assert line["levels"] == {"kernel": "square", "mask": "offset"} and line["seed"] == 1
    assert line["epochs"] == [
        {"epoch": 1.0, "train_loss": 2.5, "eval_top1": 71.0},
        {"epoch": 2.0, "train_loss": 1.5, "eval_top1": 64.0},
    ]
    assert line["settings"]["model_kwargs"]["feature_map"] == "square"
    assert (
        line["parameters"] == 1234
        and line["steps"] == 5
        and (line["seconds"], line["cpu_seconds"]) == (60.0, 30.0)
    )
    assert line["versions"]["torch"] and "revision" in line and "modified" in line
    assert str(tmp_path) not in planned.results.path.read_text(), "no path of this machine"


def test_what_is_finished_does_not_run_again(tmp_path):
    planned = plan(tmp_path)
    run_study(planned, start=stubs(planned)[0])
    before = planned.results.path.read_bytes()
    planned = plan(tmp_path)
    start, begun = stubs(planned)
    assert run_study(planned, start=start) == ([], False) and begun == {}
    assert planned.results.path.read_bytes() == before


def test_a_trial_that_fails_is_told_and_stops_no_other(tmp_path, capsys):
    planned = plan(tmp_path)
    start, begun = stubs(planned, relu_offset={"code": 3})
    failed, stopped = run_study(planned, start=start)
    assert [trial.setting for trial in failed] == ["relu-offset"] * 2 and not stopped
    assert len(begun) == 8 and len(lines(planned)) == 6
    shown = capsys.readouterr().err
    assert "relu-offset-seed0: FAILED with exit code 3: what went wrong" in shown
    start, begun = stubs(again := plan(tmp_path))
    assert run_study(again, start=start) == ([], False)
    assert list(begun) == ["relu-offset-seed0", "relu-offset-seed1"]


def test_no_more_trials_than_jobs_at_a_time(tmp_path):
    planned, most = plan(tmp_path), []

    class Counted(Stub):
        def poll(self):
            code = super().poll()
            now.discard(self) if code is not None else None
            return code

    now: set[Stub] = set()

    def start(trial):
        now.add(stub := Counted(planned.folder(trial), 1.0, lasts=3))
        most.append(len(now))
        return stub

    run_study(planned, 3, start=start)
    assert max(most) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_trials_and_the_same_study_goes_on(tmp_path, number):
    planned = plan(tmp_path)
    start, begun = stubs(planned, relu_offset={"lasts": 50})

    def interrupted(trial):
        if len(begun) == 3:
            os.kill(os.getpid(), number)
        return start(trial)

    failed, stopped = run_study(planned, 2, start=interrupted)
    assert (failed, stopped) == ([], True)
    assert begun["relu-offset-seed0"].stops == [False] and len(begun) == 4
    done = {line["trial"] for line in lines(planned)}
    assert len(done) == 2 and "relu-offset-seed0" not in done
    again = plan(tmp_path)
    start, begun = stubs(again)
    assert run_study(again, start=start) == ([], False)
    assert len(begun) == 6 and not done & begun.keys() and len(lines(again)) == 8


def test_a_second_signal_insists(tmp_path):
    planned = plan(tmp_path)

    class Stubborn(Stub):
        def poll(self):
            if self.stops == [False]:
                os.kill(os.getpid(), signal.SIGTERM)
            return -9 if True in self.stops else None

    begun = []

    def start(trial):
        begun.append(Stubborn(planned.folder(trial), 1.0))
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return begun[-1]

    assert run_study(planned, 2, start=start) == ([], True)
    assert [each.stops for each in begun] == [[False, True]] * 2


def test_results_of_other_settings_are_refused(tmp_path):
    planned = plan(tmp_path)
    run_study(planned, start=stubs(planned)[0])
    with pytest.raises(StudyError, match=r"small.jsonl: relu-none-seed0 was trained with lr=0.002"):
        plan(tmp_path, "lr=0.5")
    assert len(plan(tmp_path, "workers=1", "data_dir=elsewhere").left()) == 0
    with pytest.raises(StudyError, match="small.jsonl:1: evaluated on .*val.*not on the split"):
        plan(tmp_path, split="test")


def test_sizes_that_are_asked_for_later_are_evaluated_later(tmp_path):
    planned = plan(tmp_path)
    run_study(planned, start=stubs(planned)[0])
    planned = plan(tmp_path, sizes=[6, 12])
    begun = []

    def start(trial):
        begun.append(stub := Stub(planned.folder(trial), value_of(trial)))
        rows = [{"img_size": 6, "top1": 40.0}, {"img_size": 12, "top1": 41.0}]
        (stub.folder / "sizes.json").write_text(json.dumps(rows))
        return stub

    assert run_study(planned, start=start) == ([], False) and len(begun) == 8
    assert [line["sizes"] for line in lines(planned)] == [{"6": 40.0, "12": 41.0}] * 8
    assert plan(tmp_path, sizes=[6]).left() == [] and len(plan(tmp_path, sizes=[7]).left()) == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: not a line of JSON"),
        ("[]", ":1: not a finished trial: study is missing"),
        ('{"study": "small", "trial": "x", "levels": 3}', "levels is missing or of another type"),
    ],
)
def test_damaged_results_are_refused(tmp_path, line, message):
    (tmp_path / "small.jsonl").write_text(line + "\n")
    with pytest.raises(StudyError, match=message):
        plan(tmp_path)


def test_results_of_another_study_are_refused(tmp_path):
    planned = plan(tmp_path)
    run_study(planned, start=stubs(planned)[0])
    path = planned.results.path
    path.write_text(path.read_text().replace('"study": "small"', '"study": "other"'))
    with pytest.raises(StudyError, match="a trial of the study 'other', not small"):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model_kwargs.rpe_gian=2"], "trial relu-none-seed0: .*rpe_gian"),
        (["data_source=null"], "trial relu-none-seed0: data_dir, train_split"),
        (["num_classes=3"], "trial relu-none-seed0: num_classes: 3, but the shards have 10"),
    ],
)
def test_settings_that_cannot_be_assembled_are_refused_before_any_starts(
    tmp_path, assembled, overrides, message
):
    planned = plan(tmp_path, *overrides)
    start, begun = stubs(planned)
    with pytest.raises(StudyError, match=message):
        run_study(planned, start=start)
    assert not begun and not planned.results.path.exists()


def test_the_board_on_a_terminal(tmp_path):
    planned = plan(tmp_path)

    class Terminal:
        def __init__(self):
            self.text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    terminal = Terminal()
    board = Board(planned.trials, [60.0, 120.0], {"relu-none": 200}, 2, terminal)
    stub = Stub(tmp_path / "trial", 1.0)
    line = {"event": "train", "step": 50, "loss": 1.25, "img_per_s": 80.0}
    (stub.folder / "log.jsonl").write_text(json.dumps(line) + '\n{"event": "tr')
    board.look({planned.trials[0]: stub})
    assert "2 of 8 trials are done, about 4 min left" in terminal.text
    assert "relu-none-seed0 " in terminal.text and " 25%  loss 1.250, 80/s" in terminal.text
    board.line("a line")
    assert terminal.text.endswith("\x1b[2A\x1b[Ja line\n"), "the table is taken away first"
    assert last_line(tmp_path / "nothing") == {}
    assert [hours(each) for each in (5, 600, 7200)] == ["5 s", "10 min", "2.0 h"]
