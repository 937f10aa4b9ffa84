"""Reports and figures of real runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from vit_rpe.report import (
    Subject,
    calibration_figure,
    confusion_figure,
    curves_figure,
    masks_figure,
    write_report,
)
from vit_rpe.report.about import figures
from vit_rpe.report.content import content_of, told_apart
from vit_rpe.report.curves import curves
from vit_rpe.report.run import read_run
from vit_rpe.report.subject import subject_of_run
from vit_rpe.training import CheckpointError, read_exhibits
from vit_rpe.training.exhibits.files import write_exhibit


def content(*folders):
    return content_of([subject_of_run(read_run(folder)) for folder in folders])


def test_a_report_shows_what_the_run_wrote(runs):
    shown = content(runs / "first")["runs"][0]
    rows = (runs / "first" / "summary.csv").read_text().splitlines()
    column = rows[0].split(",").index("ema_top1")
    accuracy = [float(row.split(",")[column]) for row in rows[1:]]
    curve = next(c for c in shown["curves"]["accuracy"] if c["name"] == "average")
    assert curve["y"] == pytest.approx(accuracy, rel=1e-5)
    assert shown["answers"]["metrics"]["top1"] == pytest.approx(max(accuracy), abs=1e-3)
    assert len(shown["curves"]["loss"][0]["x"]) == 6  # a line of the log for each step
    assert shown["masks"]["epochs"] == [0, 1, 2]
    assert [batch["epoch"] for batch in shown["batches"]] == [1, 2]
    assert all(s["pictures"][0] is not None for s in shown["batches"][0]["samples"])
    assert shown["recipe"]["changed"]["mixup"] == ["0.0", "0.4"]
    assert "mixup" in shown["recipe"]["values"] and shown["notes"] == []
    session = dict(shown["origin"][0]["rows"])
    assert "torch" in session["Versions"] and "world_size 1" in session["Processes"]
    assert "path" in session["Model"]


def test_a_run_without_exhibits_data_or_checkpoints_has_a_report_too(runs, tmp_path):
    run = tmp_path / "old"
    shutil.copytree(runs / "first", run, symlinks=True)
    shutil.rmtree(run / "exhibits")
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace(str(runs / "data"), str(tmp_path / "gone")))
    (run / "log.jsonl").write_text((run / "log.jsonl").read_text() + "{half a line\n")
    shown = content(run)["runs"][0]
    assert shown["answers"] is None and shown["explorer"] is None and shown["curves"]
    assert len(shown["masks"]["layers"]) == 2, "those of the model itself"
    assert any(note.startswith("the data: ") for note in shown["notes"])
    assert any("1 line cannot be read" in note for note in shown["notes"])
    shutil.rmtree(run / "checkpoints")
    shown = content(run)["runs"][0]
    assert shown["masks"] is None and any("the model: " in note for note in shown["notes"])


def test_skipped_steps_and_bad_samples_are_listed(runs, tmp_path):
    run = tmp_path / "bad"
    shutil.copytree(runs / "first", run, symlinks=True)
    line = {"event": "skipped", "step": 3, "keys": ["<i>k</i>"], "loss": "nan"}
    with open(run / "log.jsonl", "a") as log:
        log.write(json.dumps(line) + "\n")
    (run / "bad_samples-train.csv").write_text("shard,key,reason\nx.tar,<b>,cut off\n")
    shown = content(run)["runs"][0]
    assert shown["skipped"] == [3] and shown["events"]["skipped"] == [[3, "nan", "<i>k</i>"]]
    assert shown["events"]["bad"] == [["train", "x.tar", "<b>", "cut off"]]


def test_a_run_with_few_lines_of_steps_has_curves_of_epochs(runs, tmp_path):
    lines = (runs / "first" / "log.jsonl").read_text().splitlines()
    shutil.copy(runs / "first" / "recipe.yaml", tmp_path)
    rows = [row for row in map(json.loads, lines) if row["event"] == "epoch"]
    (tmp_path / "log.jsonl").write_text("\n".join(x for x in lines if '"train"' not in x[:20]))
    shown = curves(read_run(tmp_path))
    assert shown["lr"][0]["y"] == pytest.approx([row["lr"] for row in rows], rel=1e-5)
    loss = next(curve for curve in shown["loss"] if curve["name"] == "training")
    assert loss["y"] == pytest.approx([row["train_loss"] for row in rows], rel=1e-5)
    assert len(curves(read_run(runs / "first"))["lr"][0]["x"]) == 6


@pytest.mark.parametrize(
    "value", [None, "x", [1], {"a": 1}, True, 10**400, -1], ids=lambda x: str(x)[:9]
)
def test_a_log_of_anything_has_a_report(runs, tmp_path, value):
    lines = [json.loads(line) for line in (runs / "first" / "log.jsonl").read_text().splitlines()]
    lines.append({"event": "skipped", "step": 3, "keys": ["k"], "loss": "nan"})
    names = {name for line in lines for name in line}
    for name in names - {"event"}:
        lines += [{**line, name: value} for line in lines[:3] + lines[-1:]]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n[]\n{half")
    shutil.copy(runs / "first" / "recipe.yaml", tmp_path)
    run = read_run(tmp_path)
    shown = content_of([Subject("damaged", run)])["runs"][0]
    assert run.notes[0].endswith("lines cannot be read") and ["steps", "6"] in shown["figures"]


def test_damaged_exhibits_are_named_and_the_others_shown(runs, tmp_path):
    run = tmp_path / "damaged"
    shutil.copytree(runs / "first", run, symlinks=True)
    shutil.rmtree(run / "checkpoints")
    (start, _, last), _ = read_exhibits(run, "masks")
    name = next(iter(last.tensors)).removesuffix(":range")
    write_exhibit(run, replace(last, epoch=1, tensors={name: last.tensors[name].float()}))
    cut_off = run / "exhibits" / "masks-0002.safetensors"
    cut_off.write_bytes(cut_off.read_bytes()[:50])
    batch = read_exhibits(run, "batch")[0][0]
    write_exhibit(run, replace(batch, tensors={"images": batch.tensors["images"].double()}))
    for each in read_exhibits(run, "answers")[0]:
        rounded = {**each.tensors, "losses": each.tensors["losses"].long()}
        write_exhibit(run, replace(each, tensors=rounded))
    shown = content(run)["runs"][0]
    assert shown["masks"]["epochs"] == [start.epoch] and shown["answers"] is None
    assert [each["epoch"] for each in shown["batches"]] == [2]
    notes = "\n".join(shown["notes"])
    assert "masks-0002.safetensors cannot be read: " in notes
    assert "masks of epoch 1: they are not those of the other epochs" in notes
    assert "the batch of epoch 1: it has no pictures" in notes
    assert "are numbers of other kinds" in notes


def test_several_runs_are_in_one_page(runs, tmp_path):
    path = write_report([runs / "first", runs / "second"], tmp_path / "both.html")
    text = path.read_text()
    assert text.count('"name":"first"') == 1 and text.count('"name":"second"') == 1
    assert path.stat().st_size < 2_000_000
    assert write_report(runs / "second") == (runs / "second" / "report.html").resolve()


def test_the_time_of_a_run_is_that_of_all_its_sessions(runs):
    at = "2026-01-01T10:{}+00:00".format
    log = [{"event": "start", "step": 0, "time": at("00:00")}]
    log += [{"event": "epoch", "step": 9, "time": at("01:05")}, {**log[0], "time": at("30:00")}]
    run = replace(read_run(runs / "first"), log=log)
    assert ["time", "1 min 05 s"] in figures(Subject("x", run))
    more = [*log, {"event": "train", "step": 9, "time": at("31:00")}]
    assert ["time", "2 min 05 s"] in figures(Subject("x", replace(run, log=more)))
    assert "time" not in dict(figures(Subject("x", replace(run, log=log[:1]))))


def test_runs_of_one_name_are_told_apart(runs):
    folders = map(Path, ("/a/b/x", "/a/c/x"))
    subjects = [Subject("x", replace(read_run(runs / "first"), folder=each)) for each in folders]
    assert told_apart([*subjects, Subject("y")]) == ["b/x", "c/x", "y"]
    assert told_apart(subjects[:1]) == ["x"] and told_apart([subjects[0]] * 2) == ["a/b/x"] * 2


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run: it has no recipe.yaml"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match="got none"):
        write_report([])


def test_figures(runs):
    pytest.importorskip("matplotlib")
    first = runs / "first"
    axes = curves_figure(first, runs / "second", charts=("loss", "lr")).axes
    assert [each.get_title() for each in axes] == ["loss", "learning rate"]
    assert len(axes[0].lines) == 6 and len(axes[1].lines) == 2
    assert len(masks_figure(first).axes) == 4 == len(masks_figure(first, epoch=0).axes)
    with pytest.raises(ValueError, match=r"kept the masks of the epochs \[0, 1, 2\], not of 9"):
        masks_figure(first, epoch=9)
    assert confusion_figure(first).axes[0].get_xlabel() == "predicted"
    assert "calibration error" in calibration_figure(first).axes[0].get_title()
