"""The guard skips steps that are not finite, then stops with a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import launch
from tests.training.runs import make_data, write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_recipe(
        folder / "tiny.yaml", data_dir=make_data(folder / "data"), output=str(folder), epochs=2
    )
    return folder


def diverge(recipe: str, *overrides: str) -> Any:
    """Training on images that become NaN from step 3 on, on the last rank alone."""
    import os

    from vit_rpe.cli.train import main
    from vit_rpe.training.loop import trainer

    train_step = trainer.Trainer.train_step
    state: list[Any] = []

    def poisoned(self: Any, batch: Any) -> Any:
        before = {k: v.clone() for k, v in self.learner.net.state_dict().items()}
        bad = (
            self.state.step >= 3
            and int(os.environ.get("RANK", 0)) == self.accelerator.num_processes - 1
        )
        if bad:
            batch = batch._replace(images=batch.images * float("nan"))
        step = train_step(self, batch)
        same = all((before[k] == v).all() for k, v in self.learner.net.state_dict().items())
        state.append((step.finite, same))
        return step

    trainer.Trainer.train_step = poisoned
    return main(["--recipe", recipe, *overrides]), state


@pytest.mark.parametrize("world", [1, 2])
def test_the_guard_skips_and_then_stops(place, world):
    name = f"diverged{world}"
    overrides = (f"experiment={name}", "max_skipped_steps=1")
    answers = launch(diverge, str(place / "tiny.yaml"), *overrides, world=world)
    for code, state in answers:
        assert code == 3
        assert [finite for finite, _ in state] == [True] * 3 + [False]
        assert [same for _, same in state] == [False] * 3 + [True]
    report = json.loads((place / name / "divergence.json").read_text())
    assert [part["rank"] for part in report] == list(range(world))
    last = report[-1]
    assert last["step"] == 5 and len(last["keys"]) == 8 // world and last["keys"][0].startswith("k")
    assert {"first_not_finite": "patch_embed.proj", "kind": "Conv2d"} in last["layers"]
    layers = [layer for layer in report[0]["layers"] if "layer" in layer]
    assert [layer["layer"] for layer in layers] == ["blocks.0.attn", "blocks.1.attn"]
    if world == 2:  # the first rank's samples are good
        assert layers[0]["smallest_denominator"] > 0
        assert 0 < layers[0]["mask_min"] < layers[0]["mask_max"] < 2
    skipped = [
        line
        for line in map(json.loads, (place / name / "log.jsonl").read_text().splitlines())
        if line["event"] == "skipped"
    ]
    assert [line["step"] for line in skipped] == [4, 5]
