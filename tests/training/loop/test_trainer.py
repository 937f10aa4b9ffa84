"""Whole small runs: what a recipe can ask for, and what a run leaves behind."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from tests.training.launch import train
from tests.training.runs import RICH, TINY, losses, make_data, progress, tensors, write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_recipe(
        folder / "tiny.yaml", data_dir=make_data(folder / "data"), output=str(folder), epochs=2
    )
    return folder


def run(place: Path, name: str, *overrides: str, world: int = 1) -> Path:
    recipe = ["--recipe", str(place / "tiny.yaml"), f"experiment={name}"]
    code, shown = train(*recipe, *overrides, world=world)
    assert code == 0, shown
    return place / name


def weights(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / name / "model.safetensors")


@pytest.fixture(scope="module")
def plain(place) -> Path:
    return run(place, "plain")


@pytest.mark.parametrize(
    ("world", "overrides"),
    [(2, ()), (1, ("grad_accum_steps=4",)), (2, ("grad_accum_steps=2",))],
    ids=["2 processes", "4 pieces", "2 x 2"],
)
def test_processes_and_pieces_change_nothing_but_roundoff(place, plain, world, overrides):
    """The same global batch: losses agree to 1e-5, weights to 1e-4 of their largest after 10 steps
    of AdamW at 1e-2, which turns round-off in small gradients into steps of full length."""
    other = run(place, f"same-{world}-{len(overrides)}", *overrides, world=world)
    one, two = losses(plain), losses(other)
    assert len(one) == 10
    torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-5, atol=1e-6)
    for name, value in weights(plain).items():
        scale = value.abs().max().item()
        torch.testing.assert_close(value, weights(other)[name], rtol=0, atol=1e-4 * max(scale, 0.1))


def test_2_processes_with_sgd_equal_1_to_the_last_digits(place):
    """SGD is linear in the gradient, so nothing blows round-off up."""
    options = ("opt=sgd", "lr=0.1", "mixup=0.5", "reprob=0.5")
    one, two = (run(place, f"sgd{world}", *options, world=world) for world in (1, 2))
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(two)[name], rtol=1e-5, atol=1e-6)


def test_what_a_run_leaves_behind(plain):
    assert {path.name for path in plain.iterdir()} == {
        *("recipe.yaml", "summary.csv", "log.jsonl", "steps.f64"),
        *("tensorboard", "checkpoints", "exhibits"),
    }
    rows = list(csv.DictReader((plain / "summary.csv").open()))
    assert list(rows[0]) == ["epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr"]
    assert [row["epoch"] for row in rows] == ["1", "2"]
    lines = [json.loads(line) for line in (plain / "log.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["event"] == "train")
    for name in ("img_per_s", "data_wait", "step_p50_ms", "step_p95_ms", "memory_mb", "mfu"):
        assert math.isfinite(first[name])
    mean = (
        sum(line["loss"] for line in lines if line["event"] == "train" and line["epoch"] == 1) / 5
    )
    assert float(rows[0]["train_loss"]) == pytest.approx(mean, rel=1e-12)
    assert "path: explicit" in (plain / "recipe.yaml").read_text()
    events = next((plain / "tensorboard").glob("events*"))
    assert events.stat().st_size > 1000


def test_checkpoints_load_with_timm(place):
    import vit_rpe  # noqa: F401

    result = run(place, "rich", *(f"{k}={json.dumps(v)}" for k, v in RICH.items()))
    images = torch.rand(2, 3, 8, 8)
    for link in ("last", "best"):
        folder = result / "checkpoints" / link
        models = [
            timm.create_model(f"local-dir:{each}", pretrained=True).eval()
            for each in (folder, folder / "ema")
        ]
        assert list(models[0].pretrained_cfg["input_size"]) == [3, 8, 8]
        for model, file in zip(models, (folder, folder / "ema"), strict=True):
            saved = load_file(file / "model.safetensors")
            assert all((saved[name] == value).all() for name, value in model.state_dict().items())
        assert (models[0](images) != models[1](images)).any()


def test_the_best_checkpoints_are_kept(place):
    result = run(place, "ranked", "epochs=5", "checkpoint_hist=2", "eval_metric=loss")
    rows = list(csv.DictReader((result / "summary.csv").open()))
    order = sorted(rows, key=lambda row: float(row["eval_loss"]))
    kept = {path.name for path in (result / "checkpoints").iterdir() if not path.is_symlink()}
    expected = {f"epoch-{int(row['epoch']):04d}" for row in order[:2]} | {"epoch-0005"}
    assert kept == expected
    best = (result / "checkpoints" / "best").resolve().name
    assert best == f"epoch-{int(order[0]['epoch']):04d}"
    assert progress(result)["ranking"][0] == [best, -float(order[0]["eval_loss"])]


WAYS = {
    "bf16": ["amp=true"],
    "gradient checkpointing": ["grad_checkpointing=true"],
    "channels last": ["channels_last=true"],
    "compiled": ["torchcompile=aot_eager"],
    "binary": ["bce_loss=true", "bce_sum=true", "smoothing=0"],
    "agc": ["clip_grad=0.01", "clip_mode=agc"],
    "value": ["clip_grad=0.01", "clip_mode=value"],
    "plateau": ["sched=plateau", "patience_epochs=0", "warmup_epochs=0", "eval_metric=loss"],
    "step": ["sched=step", "decay_epochs=1"],
    "second order": ["opt=adahessian", "model_kwargs.path=product"],
    "no evaluation": ["val_split=null"],
    "workers": ["workers=2"],
    "repeats": ["aug_repeats=2"],
    "timm's vit": [
        "model=vit_tiny_patch16_224",
        "model_kwargs={patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2}",
    ],
    "timm's resnet": ["model=resnet10t", "model_kwargs={}", "img_size=32"],
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_trains(place, plain, way):
    result = run(place, way.replace(" ", "-").replace("'", ""), *WAYS[way])
    found = losses(result)
    assert len(found) == (20 if way == "repeats" else 10)
    assert all(math.isfinite(value) for line in found for value in line)
    before, after = losses(plain), found
    if way in ("gradient checkpointing", "channels last", "workers", "compiled", "no evaluation"):
        torch.testing.assert_close(torch.tensor(before), torch.tensor(after), rtol=1e-5, atol=1e-6)
    else:
        assert before != after


def test_plateau_goes_on_bit_equal(place):
    """Its schedule depends on the metrics: they are shown to it again."""
    options = ["sched=plateau", "patience_epochs=0", "warmup_epochs=0", "epochs=4", "opt=sgd"]
    whole = run(place, "plateau-whole", *options, "recovery_interval=3")
    import shutil

    other = place / "plateau-cut"
    shutil.copytree(whole, other, symlinks=True)
    folder = other / "checkpoints"
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("epoch"))
    assert names[0] != (folder / "last").resolve().name
    run(place, "plateau-cut", *options, "recovery_interval=3", f"resume={folder / names[0]}")
    lrs = [row["lr"] for row in csv.DictReader((whole / "summary.csv").open())]
    assert len(set(lrs)) > 1
    assert (whole / "summary.csv").read_bytes() == (other / "summary.csv").read_bytes()
    assert all((v == weights(other)[k]).all() for k, v in weights(whole).items())


def test_a_teacher_teaches(place, plain):
    """With all weight on a teacher that is the student's own end, the loss falls towards it."""
    options = [f"kd_model_name={TINY['model']}", f"kd_checkpoint={plain}", "task_loss_weight=0"]
    options += [f"kd_model_kwargs={json.dumps({**TINY['model_kwargs']})}", "no_aug=true"]
    taught = run(place, "taught", *options, "epochs=8", "smoothing=0")
    assert losses(taught)[-1][1] < 0.25 * losses(taught)[0][1]
    hard = run(place, "taught-hard", *options, "kd_type=hard")
    assert losses(hard)[0][1] != losses(taught)[0][1]


def test_fine_tuning_at_another_resolution_and_number_of_classes(place, plain):
    tuned = run(
        place, "tuned", f"initial_checkpoint={plain}", "img_size=16", "num_classes=11", "lr=1e-6"
    )
    before, after = weights(plain, "best"), weights(tuned)
    name = "blocks.0.attn.qkv.weight"
    torch.testing.assert_close(before[name], after[name], atol=1e-4, rtol=0)
    assert after["head.weight"].shape[0] == 11
    table = next(key for key in before if ".attn.rpe." in key)
    assert before[table].shape != after[table].shape and after["pos_embed"].shape[1] == 16


def test_tensors_of_a_checkpoint_are_those_of_the_optimizer_too(plain):
    names = tensors(plain / "checkpoints" / "last")
    assert any(name.startswith("optimizer.safetensors:") and "exp_avg_sq" in name for name in names)
