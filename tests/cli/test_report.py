"""Reports by the command line: of runs, at the end of runs and of evaluations."""

import pytest

from tests.training.launch import launch, train
from tests.training.runs import make_data, write_recipe


def run_command(*words):
    import contextlib
    import io

    from vit_rpe.cli import main

    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = stop.code
    return code, shown.getvalue()


def command(*words):
    return launch(run_command, *map(str, words))[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nowhere",), "nowhere is not a run: it has no recipe.yaml"),
        ((), "the following arguments are required: RUN"),
        (("x", "--limit", "0.5"), "wanted a size from 1 to 1000 MB, got '0.5'"),
        (("x", "--output", "/no/such/folder/a.html"), "cannot write a file"),
    ],
)
def test_wrong_input_is_one_line(words, expected):
    code, shown = run_command("report", *words)
    assert code == 2 and expected in shown and shown.count("\n") == 1


def test_a_run_and_an_evaluation_end_with_their_reports(tmp_path):
    data = make_data(tmp_path / "data")
    values = {"data_dir": data, "output": str(tmp_path), "epochs": 1, "warmup_epochs": 0}
    recipe = write_recipe(tmp_path / "a.yaml", **values, report=True)
    code, shown = train("--recipe", recipe)
    run = tmp_path / "a"
    assert code == 0 and shown.rstrip().endswith(f"report      {run / 'report.html'}")
    (run / "report.html").unlink()
    (run / "report.html").mkdir()  # it cannot be written
    code, shown = train("--recipe", recipe, "resume=auto", "epochs=2")
    assert code == 0 and shown.count("warning: no report was made: ") == 1
    words = ("evaluate", "--checkpoint", run, "--data", data, "--workers", 0)
    code, shown = command(*words, "--output", tmp_path / "results")
    page = tmp_path / "results" / "a" / "report.html"
    assert code == 0 and f"report      {page}" in shown
    text = page.read_text()
    assert '"explorer":{' in text and '["Command","' in text and "torch 2." in text
    assert "world_size 1, device cpu, precision float32" in text
    code, shown = command(*words, "--output", tmp_path / "sizes", "--img-size", "8,12")
    assert code == 0 and " at 12" in (tmp_path / "sizes" / "a" / "report.html").read_text()
