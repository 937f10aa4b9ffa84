"""Exhibits of real runs: what is kept, what a resumed run keeps, and what an error costs."""

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.launch import train
from tests.training.runs import RICH, assert_same_run, make_data, write_recipe
from vit_rpe.training import read_exhibits


def files(run):
    return {path.name: path.read_bytes() for path in (run / "exhibits").iterdir()}


def test_a_resumed_run_is_bit_equal_and_keeps_the_same_exhibits(tmp_path):
    """Mixing, dropout, EMA; stopped after the first epoch by its length, then longer."""
    values = {**RICH, "data_dir": make_data(tmp_path / "data"), "output": str(tmp_path)}
    schedule = {"sched": "step", "decay_epochs": 10, "warmup_epochs": 0}
    recipe = write_recipe(tmp_path / "a.yaml", **{**values, **schedule})
    assert train("--recipe", recipe, "experiment=whole", "epochs=3")[0] == 0
    assert train("--recipe", recipe, "experiment=parts", "epochs=2")[0] == 0
    (tmp_path / "parts" / "exhibits" / "masks-0003.safetensors").write_bytes(b"of an older run")
    assert train("--recipe", recipe, "experiment=parts", "epochs=3", "resume=auto")[0] == 0
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert_same_run(whole, parts)
    ours, theirs = files(whole), files(parts)
    assert (
        ours.keys()
        == theirs.keys()
        == {
            *(f"masks-{epoch:04d}.safetensors" for epoch in range(4)),
            *(f"batch-{epoch:04d}.safetensors" for epoch in range(3)),
            *(name for name in ours if name.startswith("answers-")),
        }
    )
    same = [name for name in ours if not name.startswith("answers-")]  # these have seconds
    assert [name for name in same if ours[name] != theirs[name]] == []
    first, *_, last = read_exhibits(whole, "masks")[0]
    name = next(iter(first.tensors))
    assert (first.tensors[name] != last.tensors[name]).any() or (
        first.tensors[f"{name}:range"] != last.tensors[f"{name}:range"]
    ).any()
    events = EventAccumulator(str(whole / "tensorboard"), {"images": 0}).Reload()
    assert {*events.Tags()["images"]} >= {"batches/augmented", f"masks/{name}"}
    assert [image.step for image in events.Images(f"masks/{name}")] == [0, 5, 10, 15]
    batch = read_exhibits(whole, "batch")[0][0]
    assert batch.tensors["images"].dtype == torch.uint8 and len(batch.values["keys"]) == 8


def test_a_run_does_not_fail_for_want_of_an_exhibit(tmp_path):
    values = {"data_dir": make_data(tmp_path / "data"), "output": str(tmp_path), "epochs": 1}
    recipe = write_recipe(tmp_path / "a.yaml", **values, warmup_epochs=0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "exhibits").write_text("a file where a folder should be")
    code, shown = train("--recipe", recipe)
    assert code == 0 and shown.count("no more exhibits") == 1
    assert (tmp_path / "a" / "checkpoints" / "last").exists()
