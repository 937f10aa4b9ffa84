"""A run that an earlier version wrote (38c697a, version 0.1.0) is evaluated and continued.

`old_run` was made by `python train.py --recipe recipes/quickstart.yaml epochs=3 warmup_epochs=1
checkpoint_hist=1 output=. experiment=old_run data_dir=digits model_kwargs.embed_dim=16
model_kwargs.num_heads=2 model_kwargs.depth=2 model_kwargs.mlp_ratio=1`, without its links.
"""

import csv
import shutil
from pathlib import Path

import pytest
from accelerate import Accelerator

from vit_rpe.cli.train import main
from vit_rpe.data import open_shards
from vit_rpe.data.making import digits, make_shards
from vit_rpe.training import evaluate, evaluation_loader, find_model, load_model

OLD = Path(__file__).with_name("old_run")


@pytest.fixture
def old_run(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(OLD, tmp_path / "old_run")


def epochs(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "summary.csv").open()))


def test_it_gets_longer(old_run):
    before = epochs(old_run)
    recipe = ["--recipe", str(old_run / "recipe.yaml"), "resume=auto"]
    assert main([*recipe, "epochs=4"]) == 0
    after = epochs(old_run)
    assert after[:3] == before and len(after) == 4
    assert float(after[3]["train_loss"]) < float(before[2]["train_loss"]) + 0.05


def test_its_weights_give_the_same_results(old_run):
    make_shards(digits()["val"], "digits", "val")
    _, model = load_model(find_model(old_run))
    shards = open_shards("digits", "val")
    loader = evaluation_loader(shards, 10, model.pretrained_cfg, 32, workers=0)
    result = evaluate(model, loader, Accelerator(cpu=True), 10)
    expected = epochs(OLD)[2]
    assert result.metrics["top1"] == pytest.approx(float(expected["ema_top1"]), abs=1e-3)
    assert result.metrics["loss"] == pytest.approx(float(expected["ema_loss"]), rel=1e-4)
