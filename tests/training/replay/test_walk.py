"""A replayed step is, bit for bit, the step that the run made, and the run is only read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.launch import launch, train
from tests.training.replay.runs import contents, replay, replay_and_keep, train_and_watch
from tests.training.runs import RICH, TINY, make_data, write_recipe
from vit_rpe.training.record.steps import ROW, read_steps

DROPOUT = {**TINY["model_kwargs"], "proj_drop_rate": 0.2}
MEAN = STD = 0.5  # of the pixels of this model
STEP = 8  # of 15, the third of the second epoch


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    values = {"data_dir": make_data(folder / "data"), "output": str(folder), "log_interval": 50}
    values.update(RICH, model_kwargs=DROPOUT, workers=2)
    write_recipe(folder / "rich.yaml", **values)
    return folder


@pytest.fixture(scope="module")
def watched(place) -> dict[str, Any]:
    """What a run with workers, augmentation, mixing, dropout and an average did in a step."""
    (kept,) = launch(train_and_watch, str(place / "rich.yaml"), STEP, "experiment=rich")
    return kept


@pytest.fixture(scope="module")
def rich(place, watched) -> Path:
    return place / "rich"


def trained(place: Path, name: str, *overrides: str, code: int = 0, world: int = 1) -> Path:
    recipe = ("--recipe", str(place / "rich.yaml"), f"experiment={name}")
    got, shown = train(*recipe, *overrides, world=world)
    assert got == code, shown
    return place / name


def as_json(run: Path, step: int) -> dict[str, Any]:
    return json.loads((run / "replay" / f"step-{step:08d}" / "replay.json").read_text())


def test_a_step_is_what_it_was(rich, watched):
    before = contents(rich)
    check(rich, [replay_and_keep(str(rich), STEP)], [watched])
    assert contents(rich) == before


def test_a_step_of_two_processes(place):
    options = (str(place / "rich.yaml"), STEP, "experiment=two", "epochs=2", "workers=0")
    then = launch(train_and_watch, *options, world=2)
    check(place / "two", launch(replay_and_keep, str(place / "two"), STEP, world=2), then)


def check(run: Path, now: list[dict[str, Any]], then: list[dict[str, Any]]) -> None:
    """Compare what each rank has seen again with what it had seen, and with the record."""
    recorded = read_steps(run)
    assert len({each.loss for each in recorded.values()}) == len(recorded) >= 10
    for each, was in zip(now, then, strict=True):
        assert was["code"] == 0
        assert each["outcome"] == tuple(recorded[STEP])
        assert each["route"] == "3 steps from epoch-0001" and each["compared"] == 3
        assert each["gradients"] == was["gradients"]
        assert len(each["keys"]) == 8 and len(set(each["keys"])) == 8
        images = was["images"].astype(np.float32)
        pixels = np.clip(np.round((images * STD + MEAN) * 255), 0, 255)
        assert np.abs(each["pictures"] - pixels).max() <= 1
        assert each["ranges"]["blocks.1"][2] == 8 * 4 * 16  # of all ranks
    shares = [sum(share for _, share in row) for row in now[0]["classes"]]
    assert np.allclose(shares, 1, atol=5e-3)
    assert any(len(row) > 1 for row in now[0]["classes"])


def test_from_the_beginning_past_a_damaged_checkpoint(rich, tmp_path):
    run = shutil.copytree(rich, tmp_path / "run", symlinks=True)
    weights = run / "checkpoints" / "epoch-0001" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, shown = replay(run, "--step", STEP)
    assert code == 0, shown
    assert "8 steps from the beginning" in shown
    assert re.search("warning: .*epoch-0001/model.safetensors is damaged: .*; passed by", shown)
    assert "equal, bit for bit: loss, gradient norm and learning rate, as are 7 steps" in shown
    assert as_json(run, STEP)["equal_steps"] == STEP


def test_a_run_that_was_resumed_for_more_epochs_and_in_other_pieces(place):
    """Its rates follow metrics, which are not computed again but taken from the record."""
    options = ("sched=plateau", "patience_epochs=0", "warmup_epochs=0", "eval_metric=loss", "lr=1")
    run = trained(place, "longer", *options, "epochs=2")
    more = ("resume=auto", "epochs=4", "grad_accum_steps=2", "workers=0")
    trained(place, "longer", *options, *more)
    steps = read_steps(run)
    assert len({each.lr for each in steps.values()}) > 1
    shutil.rmtree(run / "checkpoints")
    code, shown = replay(run, "--step", 17)
    assert code == 0 and "17 steps from the beginning" in shown, shown
    assert as_json(run, 17)["equal_steps"] == 17 and as_json(run, 17)["lr"] == steps[17].lr


def test_a_compiled_model_is_measured_beside(place):
    run = trained(place, "compiled", "torchcompile=eager", "val_split=null")
    code, shown = replay(run, "--step", 3)
    assert code == 0 and "in a second pass, without torch.compile" in shown, shown
    assert as_json(run, 3)["equal_steps"] == 3


def test_a_run_that_diverged(place):
    options = ("opt=sgd", "lr=1e30", "warmup_epochs=0", "clip_grad=null", "max_skipped_steps=1")
    recipe = ("--recipe", str(place / "rich.yaml"), "experiment=diverged", *options)
    code, shown = train(*recipe)
    run = place / "diverged"
    assert code == 3 and f"vit-rpe replay {run} --first nonfinite" in shown
    bad = min(step for step, each in read_steps(run).items() if each.skipped)
    code, shown = replay(run, "--first", "nonfinite")
    assert code == 0, shown
    assert f"first: nonfinite at step {bad} of " in shown and ", skipped" in shown
    assert re.search(r"not finite  first in blocks\.0\.\S+, of all modules", shown), shown
    assert "gradients, from the output: head.bias" in shown
    assert as_json(run, bad)["skipped"]


def test_the_first_step_that_meets_a_condition(rich):
    losses = {step: each.loss for step, each in read_steps(rich).items()}
    least = min(losses, key=losses.__getitem__)
    code, shown = replay(rich, "--first", f"loss <= {losses[least]!r}")
    assert code == 0 and f"at step {least} of 15" in shown, shown
    code, shown = replay(rich, "--first", "loss > 1e9")
    assert code == 1 and shown.endswith(f"replay: no step of {rich} has loss > 1e9\n"), shown


def test_a_run_that_recorded_no_steps(rich, tmp_path):
    run = shutil.copytree(rich, tmp_path / "run", symlinks=True)
    target = read_steps(run)[2]
    (run / "steps.f64").unlink()
    code, shown = replay(run, "--first", f"loss == {target.loss!r}")
    assert code == 0 and "did not record: at most 15 steps from the beginning" in shown, shown
    assert as_json(run, 2)["grad_norm"] == target.grad_norm
    assert "the run recorded nothing of this step" in shown
    code, shown = replay(run, "--first", "loss > 1e9")
    assert code == 1 and "no step of" in shown


def test_a_step_that_differs_is_told(rich, tmp_path):
    run = shutil.copytree(rich, tmp_path / "run", ignore=shutil.ignore_patterns("replay"))
    rows = bytearray((run / "steps.f64").read_bytes())
    step, loss, *rest = ROW.unpack_from(rows, 6 * ROW.size)
    ROW.pack_into(rows, 6 * ROW.size, step, np.nextafter(loss, 9.0), *rest)
    (run / "steps.f64").write_bytes(rows)
    log = (run / "log.jsonl").read_text().replace('"torch": "', '"torch": "0.')
    (run / "log.jsonl").write_text(log)
    code, shown = replay(run, "--step", STEP)
    assert code == 1 and not (run / "replay").exists()
    last = shown.splitlines()[-1]
    assert "step 7 is not what it was: loss " in last and "(torch 0." in last, shown


def test_what_is_refused(rich, tmp_path):
    for arguments, part in (
        (("--step", 16), "has made 15 steps: there is no step 16"),
        (("--step", 3, "--data", tmp_path), "data_dir, train_split: "),
    ):
        code, shown = replay(rich, *arguments)
        assert code == 2 and part in shown, shown
    code, shown = replay(rich, "--step", 3, world=2)
    assert code == 2 and "the run had 1 process, and a replay needs as many: here are 2" in shown
    other = shutil.copytree(rich, tmp_path / "run", symlinks=True)
    log = (other / "log.jsonl").read_text().replace('"world_size": 1', '"world_size": 3')
    (other / "log.jsonl").write_text(log)
    code, shown = replay(other, "--step", 3)
    assert code == 2 and "--num_processes 3 -m vit_rpe replay" in shown, shown


def test_other_data_are_refused(rich, tmp_path):
    data = make_data(tmp_path / "data", train=44)
    code, shown = replay(rich, "--step", 3, "--data", data)
    assert code == 2 and f"was made with other data than those at {data}" in shown, shown
