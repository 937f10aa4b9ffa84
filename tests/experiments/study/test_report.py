"""Tables, CSV, picture and the section of a page, from results that are known."""

from __future__ import annotations

import csv
import json

import pytest

from tests.experiments.study.studies import SMALL, Stub, known_settings, plan, value_of
from vit_rpe.experiments import (
    StudyError,
    insert_report,
    report_text,
    run_study,
    write_report,
)
from vit_rpe.experiments.study.figure import _by_size
from vit_rpe.experiments.study.tables import values_of


@pytest.fixture(autouse=True)
def nothing_is_assembled(monkeypatch):
    monkeypatch.setattr("vit_rpe.experiments.study.run.check_settings", known_settings)
    monkeypatch.setattr("vit_rpe.experiments.study.queue.time.sleep", lambda _: None)


def finished(folder, count=8, **changes):
    planned = plan(folder, **changes)
    for trial in planned.trials[count:]:
        planned.recipes.pop(trial)
    kept = planned.trials[:count]

    def start(trial):
        return Stub(planned.folder(trial), value_of(trial), code=0 if trial in kept else 1)

    planned.recipes.update(plan(folder, **changes).recipes)
    run_study(planned, start=start)
    return plan(folder, **changes)


def test_the_tables_of_known_values(tmp_path):
    planned = finished(tmp_path)
    text = report_text(planned.study, planned.trials, planned.results)
    assert "A small study.\n" in text and "8 of 8 trials are done, seeds 0, 1" in text
    assert "| kernel | mask | seeds | eval_top1 | deviation | 95 % interval |" in text
    assert "| relu | none | 2 | 55.00 | 7.07 | -8.53 to 118.53 |" in text
    assert "| gain | relu | 2 | +2.50 | 0.71 | -3.85 to +8.85 | +3.00, +2.00 |" in text
    assert "| mean gain | average | 2 | +3.50 | 0.71 | -2.85 to +9.85 | +4.00, +3.00 |" in text
    assert "Cost: 4 min of one CPU core" in text


def test_a_difference_names_what_is_compared(tmp_path):
    kernels = {"name": "kernels", "this": {"kernel": "square"}, "minus": {"kernel": "relu"}}
    planned = finished(tmp_path, comparisons=[{**kernels, "by": ["mask"]}, *SMALL["comparisons"]])
    text = report_text(planned.study, planned.trials, planned.results)
    assert "| comparison | kernel | mask |" in text
    assert "| kernels | square vs relu | none |" in text
    assert "| gain | relu | offset vs none |" in text


def test_what_is_not_there_is_said(tmp_path):
    planned = finished(tmp_path, count=5)
    text = report_text(planned.study, planned.trials, planned.results)
    assert "5 of 8 trials are done" in text
    assert (
        "| relu | none | 2 | 55.00 |" in text
        and "| relu | offset | 1 of 2 | 53.00 | - | - |" in text
    )
    assert "| mean gain | average | 1 of 2 | +4.00 | - | - | +4.00 |" in text


def test_no_results_make_a_report_without_tables(tmp_path):
    planned = plan(tmp_path)
    assert "0 of 8 trials are done" in report_text(planned.study, planned.trials, planned.results)
    assert write_report(planned.study, planned.trials, planned.results, tmp_path / "out") is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.md"]


def test_the_files_of_a_report(tmp_path):
    planned = finished(tmp_path)
    out = tmp_path / "out"
    assert write_report(planned.study, planned.trials, planned.results, out) is None
    names = ["differences.csv", "figure.png", "report.md", "values.csv"]
    assert sorted(path.name for path in out.iterdir()) == names
    rows = list(csv.DictReader((out / "differences.csv").read_text().splitlines()))
    assert [row["difference"] for row in rows] == ["+2.50", "+4.50", "+3.50"]
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_other_sizes(tmp_path):
    planned = finished(tmp_path)
    lines = [json.loads(line) for line in planned.results.path.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["sizes"] = {"6": 10.0 + number, "12": 20.0}
    planned.results.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    planned = plan(tmp_path, sizes=[6, 12])
    text = report_text(planned.study, planned.trials, planned.results)
    assert "| kernel | mask | 6 px | 12 px |" in text
    assert "| relu | none | 12.00 ± 2.83 | 20.00 ± 0.00 |" in text
    assert write_report(planned.study, planned.trials, planned.results, tmp_path / "out") is None
    assert (tmp_path / "out" / "sizes.png").read_bytes().startswith(b"\x89PNG")
    first = values_of(planned.study, planned.trials, planned.results)[0]
    points = _by_size(planned.study, first)
    assert list(points) == [6, 8, 12]  # 8 pixels are those of the training
    assert points[8].mean == first.value.mean and points[6].values == (10.0, 14.0)


def test_the_section_of_a_page(tmp_path):
    planned, page = finished(tmp_path), tmp_path / "page.md"
    begin, end = "<!-- study: small -->", "<!-- end of study: small -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    insert_report(planned.study, planned.trials, planned.results, page)
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\nA small study.\n") and text.endswith(
        f"{end}\nafter\n"
    )
    assert "old" not in text and "| mean gain |" in text
    insert_report(planned.study, planned.trials, planned.results, page)
    assert page.read_text() == text
    page.write_text("no marks")
    with pytest.raises(StudyError, match="page.md: wanted the lines"):
        insert_report(planned.study, planned.trials, planned.results, page)


def test_a_metric_that_is_not_there(tmp_path):
    planned = finished(tmp_path)
    planned = plan(tmp_path, metric="ema_top1")
    with pytest.raises(StudyError, match="small.yaml: metric: .*relu-none-seed0 have no ema_top1"):
        report_text(planned.study, planned.trials, planned.results)
