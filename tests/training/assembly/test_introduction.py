"""What a run says when it begins, when it goes on, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.launch import train
from tests.training.runs import make_data, write_recipe
from vit_rpe.training.record.progress_bar import ProgressBar

LABELS = ["run", "machine", "data", "model", "attention", "weights", "training"]
END = ["finished", "best", "results", "next"]


def entries(shown: str) -> dict[str, str]:
    """The text of each aligned entry by its label, lines of one entry joined."""
    found: dict[str, str] = {}
    label = ""
    for line in shown.splitlines():
        if line[11:12] == " " and line[12:13].strip() and ":" not in line[:12]:
            label = line[:12].strip() or label
            found[label] = f"{found[label]} | {line[12:]}" if label in found else line[12:]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    data = make_data(folder / "data")
    write_recipe(folder / "a.yaml", data_dir=data, output=str(folder), log_interval=50)
    return folder


def begin(place: Path, *overrides: str, world: int = 1) -> tuple[dict[str, str], str]:
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides, world=world)
    assert code == 0, shown
    return entries(shown), shown


def test_a_run_says_what_it_is_and_what_it_has_come_to(place):
    found, shown = begin(place)
    assert list(found)[: len(LABELS)] == LABELS and list(found)[len(LABELS) :] == END
    assert found["run"] == f"{place}/a, new"
    assert found["machine"] == "1 process on cpu, 1 thread, 0 workers for data, float32"
    assert found["data"] == f"{place}/data: 43 samples of train, 21 of val; 10 classes"
    assert found["model"].startswith("performer_rpe2d_tiny_patch16_224, 7,")
    assert found["model"].endswith(" parameters, 8 x 8 pixels")
    assert "path in " in found["attention"]
    assert found["attention"].endswith("mask Toeplitz on a (2, 2) grid, 2 heads")
    assert found["weights"] == "random, seed 3"
    assert found["training"] == "3 epochs of 5 steps of 8 samples"
    assert found["finished"].startswith("3 epochs, 15 steps in 0:0")
    assert "of val, in epoch " in found["best"]
    assert found["best"].endswith(f": {place}/a/checkpoints/best")
    assert "epoch 1/3, step 1/15: loss " in shown, "the first step is on the screen"
    assert max(map(len, shown.replace(str(place), "").splitlines())) <= 110


def test_a_run_that_goes_on_says_from_where(place):
    begin(place, "experiment=b", "epochs=2")
    found, _ = begin(place, "experiment=b", "resume=auto")
    assert found["run"] == f"{place}/b, resumed from epoch-0002" and "weights" not in found
    assert found["training"] == "3 epochs of 5 steps of 8 samples; step 10 of 15 is done"
    assert found["finished"].startswith("3 epochs, 15 steps; the last 5 in 0:0")


def test_weights_of_another_run_are_counted(place):
    begin(place, "experiment=c", "epochs=1", "warmup_epochs=0")
    more = (f"initial_checkpoint={place}/c", "num_classes=12", "img_size=12", "epochs=1")
    found, _ = begin(place, "experiment=d", "warmup_epochs=0", *more)
    count, new, resized = found["weights"].split(" | ")
    loaded, total = (int(word) for word in count.replace(",", "").split() if word.isdigit())
    assert total - loaded == 2 and f"from {place}/c/checkpoints/epoch-0001/" in count
    assert new == "2 left as initialized, for other classes (head.weight, head.bias)"
    assert resized.startswith("3 resampled to this size (pos_embed, blocks.0.attn.rpe.table")
    same = begin(place, "experiment=e", "epochs=1", "warmup_epochs=0", more[0])[0]["weights"]
    loaded, total = (int(word) for word in same.replace(",", "").split() if word.isdigit())
    assert loaded == total and "|" not in same


def test_two_processes_speak_once_and_timm_has_its_own_attention(place):
    options = ("experiment=f", "model=resnet10t", "model_kwargs={}", "img_size=32", "epochs=1")
    found, shown = begin(place, *options, "warmup_epochs=0", "grad_accum_steps=2", world=2)
    assert shown.count("machine ") == 1 and "|" not in found["machine"]
    assert found["machine"].startswith("2 processes on cpu, each with 1 thread")
    assert found["training"].endswith("of 8 samples (2 processes x 2 pieces x 2)")
    assert "not one of vit_rpe's" in found["attention"]


def test_a_slow_run_is_not_silent(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("vit_rpe.training.record.progress_bar.monotonic", lambda: clock[0])
    bar = ProgressBar(10, 0, active=True)
    assert bar.is_silent, "nothing has been said yet"
    bar.line("x")
    assert not bar.is_silent
    clock[0] += 21
    assert bar.is_silent and not ProgressBar(10, 0, active=False).is_silent
