"""A validation part of the training split: never trained on, evaluated once, resumed exactly."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch import launch, train
from tests.training.runs import RICH, assert_same_run, make_data, write_recipe
from tests.training.stops import run_and_stop, run_to_end
from tests.training.video_runs import VIDEO, make_videos
from vit_rpe.data.parts import key_hash

FRACTION = 0.3


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("part")
    values = {**RICH, "data_dir": make_data(folder / "data"), "output": str(folder), "epochs": 2}
    write_recipe(folder / "a.yaml", **values, val_fraction=FRACTION, resume="auto")
    return folder


def held(count: int = 43) -> set[str]:
    return {f"k{i:04d}" for i in range(count) if key_hash(f"k{i:04d}".encode()) < FRACTION}


def run_and_tell(recipe: str, *overrides: str) -> dict[str, Any]:
    """Train; return the keys that were trained on and those that were evaluated, in this rank."""
    from vit_rpe.training import evaluation
    from vit_rpe.training.loop import trainer

    told: dict[str, Any] = {"trained": [], "evaluated": [], "evaluations": 0}
    step, predict = trainer.Trainer.train_step, evaluation.predict

    def train_step(self: Any, batch: Any) -> Any:
        told["trained"] += batch.keys
        return step(self, batch)

    def tell(batches: Any) -> Any:
        for batch in batches:
            told["evaluated"] += [key for key in batch.keys if key]
            yield batch

    def predicted(model: Any, batches: Any, *args: Any, **options: Any) -> Any:
        told["evaluations"] += 1
        return predict(model, tell(batches), *args, **options)

    trainer.Trainer.train_step, evaluation.predict = train_step, predicted
    told["code"] = run_to_end(recipe, *overrides)
    return told


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (2, 0), (2, 1)])
def test_training_never_sees_what_is_evaluated(place, world, workers):
    """The set has 43 samples in shards of others, without an index."""
    name = f"experiment=told-{world}-{workers}"
    told = launch(run_and_tell, str(place / "a.yaml"), name, f"workers={workers}", world=world)
    assert all(each["code"] == 0 for each in told)
    trained = {key for each in told for key in each["trained"]}
    evaluated = sorted(key for each in told for key in each["evaluated"])
    assert 5 < len(held()) < 25 and not trained & held()
    times = told[0]["evaluations"]
    assert times == 4, "two epochs, of the weights and of their average"
    assert evaluated == sorted([*held()] * times)


def test_three_processes(place):
    options = ("experiment=three", "batch_size=6", "epochs=1", "warmup_epochs=0")
    told = launch(run_and_tell, str(place / "a.yaml"), *options, world=3)
    assert sorted(k for each in told for k in each["evaluated"]) == sorted([*held()] * 2)
    assert not {key for each in told for key in each["trained"]} & held()


def test_the_record_says_what_figures_are_about(place):
    code, shown = train("--recipe", str(place / "a.yaml"), "experiment=said")
    part, run = f"val_fraction {FRACTION} of train", place / "said"
    assert code == 0
    left = 43 - len(held())
    assert f": {left} samples of train, {len(held())} more held out to evaluate (val_f" in shown
    assert f" of {part}, in epoch " in shown and " --val-fraction\n" in shown
    assert yaml.safe_load((run / "recipe.yaml").read_text())["val_fraction"] == FRACTION
    rows = list(csv.DictReader((run / "summary.csv").open()))
    assert [row["evaluated"] for row in rows] == [part] * 2
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {line["evaluated"] for line in lines if line["event"] == "epoch"} == {part}


@pytest.mark.parametrize("world", [1, 2])
def test_a_stopped_run_goes_on_bit_equal(place, world):
    recipe, whole, name = str(place / "a.yaml"), f"whole{world}", f"stopped{world}"
    stop = {"where": "step", "at": 4, "rank": 0, "signal": 15}
    assert launch(run_to_end, recipe, f"experiment={whole}", world=world) == [0] * world
    assert launch(run_and_stop, recipe, stop, f"experiment={name}", world=world) == [75] * world
    assert launch(run_to_end, recipe, f"experiment={name}", world=world) == [0] * world
    assert_same_run(place / name, place / whole)


def test_another_fraction_is_refused_on_resume(place):
    recipe = ("--recipe", str(place / "a.yaml"), "experiment=other")
    assert train(*recipe)[0] == 0
    for fraction in (0, 0.2):
        code, shown = train(*recipe, f"val_fraction={fraction}", "epochs=3")
        assert code == 2 and f"val_fraction: the run began with {FRACTION}" in shown


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        ("1", "val_fraction: input should be less than 1, got 1"),
        ("-0.1", "val_fraction: input should be greater than or equal to 0, got -0.1"),
        ("nan", "val_fraction: "),
        ("a", "val_fraction: input should be a valid number, got 'a'"),
        ("1e-9", "val_fraction: a validation part of 1e-09 has none of the 43 samples: take more"),
    ],
)
def test_a_wrong_fraction_is_one_line(place, fraction, text):
    code, shown = train("--recipe", str(place / "a.yaml"), f"val_fraction={fraction}")
    assert code == 2 and shown.count("\n") == 1 and text in shown


def test_a_split_to_evaluate_is_not_needed(place):
    options = ("val_split=nonsense", "experiment=no-val", "sched=plateau")
    code, shown = train("--recipe", str(place / "a.yaml"), *options)
    assert code == 0, shown


def test_a_dry_run_without_data(place):
    code, shown = train("--recipe", str(place / "a.yaml"), "data_dir=nowhere", "--dry-run")
    assert code == 0 and "a step, an evaluation and a checkpoint: passed" in shown


def test_clips_of_a_video_stay_together(tmp_path):
    """The split val of the samples has three clips of each of seven videos, over four shards."""
    values: dict[str, Any] = {**VIDEO, "data_dir": make_videos(tmp_path / "data")}
    values.update(train_split="val", val_fraction=0.5, batch_size=4, epochs=1, warmup_epochs=0)
    recipe = write_recipe(tmp_path / "v.yaml", **values, output=str(tmp_path))
    (told,) = launch(run_and_tell, recipe)
    assert told["code"] == 0
    videos = {name: {key[:4] for key in told[name]} for name in ("trained", "evaluated")}
    assert videos["trained"] and videos["evaluated"]
    assert not videos["trained"] & videos["evaluated"]
    assert len(told["evaluated"]) == 3 * len(videos["evaluated"])
