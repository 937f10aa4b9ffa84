"""What cannot be is refused in one line, before a run leaves anything behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from accelerate.utils import is_wandb_available

from tests.data.samples import sample, write_shard
from tests.training.launch import train
from tests.training.runs import make_data, write_recipe
from tests.training.video_runs import VIDEO, make_videos


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_recipe(
        folder / "a.yaml", data_dir=make_data(folder / "data"), output=str(folder), epochs=2
    )
    code, shown = train("--recipe", str(folder / "a.yaml"))
    assert code == 0, shown
    return folder / "a"


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "a", symlinks=True))


def again(run: Path, copy: Path, *overrides: str) -> tuple[int, str]:
    recipe = ["--recipe", str(run.parent / "a.yaml"), f"output={copy.parent}"]
    return train(*recipe, *overrides)


REFUSED = [
    ([], "holds a run already: resume=auto continues it, experiment=NAME starts another"),
    (
        ["resume=auto", "lr=0.5"],
        "lr: the run began with 0.01, now it is 0.5; a run continues only as",
    ),
    (["resume=auto", "epochs=1", "warmup_epochs=0"], "epochs: the run began with 2, now it is 1"),
    (["resume=auto", "model_kwargs.depth=3"], "model_kwargs: the run began with {"),
    (["resume=nowhere"], "no checkpoint at nowhere: neither a run nor a folder with"),
    (["experiment=b", "initial_checkpoint=nowhere"], "no checkpoint at nowhere"),
    (["experiment=b", "batch_size=64"], "batch_size 64 is more than an epoch has: 43 samples"),
    (["experiment=b", "data_dir=nowhere"], "data_dir, train_split: no shards (.tar) at 'nowhere'"),
    (["experiment=b", "val_split=test"], "data_dir, val_split: no shard at"),
    (["experiment=b", "num_classes=null"], "num_classes: the shards at"),
    (["experiment=b", "model_kwargs.depht=3"], "unexpected keyword argument 'depht'"),
    (["experiment=b", "aa=nonsense"], "aa: no policy 'nonsense'; there are "),
    (["experiment=b", "opt_kwargs={nonsense: 1}"], "opt: adamw with {'nonsense': 1}: "),
    (["experiment=b", "amp=true", "amp_dtype=float16", "device=cpu"], "float16 needs a GPU"),
    (["experiment=b", "batch_size=7", "mixup=1.0"], "an even number of samples on every process"),
    (["experiment=b", "log_wandb=true"], "log_wandb: wandb is not installed"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_cannot_be_is_refused_in_one_line(run, copy, overrides, message):
    if "log_wandb=true" in overrides and is_wandb_available():
        pytest.skip("wandb is installed here")
    code, shown = again(run, copy, *overrides)
    assert code == 2 and message in shown, shown
    assert shown.count("\n") == 1 and shown.startswith("vit-rpe train: error: ")
    assert not (copy.parent / "b").exists()


def test_other_processes_need_other_parts(run, copy):
    recipe = ["--recipe", str(run.parent / "a.yaml"), f"output={copy.parent}", "experiment=b"]
    code, shown = train(*recipe, "batch_size=7", world=2)
    assert code == 2
    assert "batch_size 7 has no equal parts for 2 processes x grad_accum_steps 1" in shown


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("values")
    write_recipe(folder / "a.yaml", data_dir=make_data(folder / "data"), output=str(folder))
    return folder


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["opt=adan", "opt_betas=[0.9,0.99]"], "opt_betas: adan has 3, got 2"),
        (["lr_cycle_mul=0.5", "cooldown_epochs=9"], "sched: cosine has no learning rate: "),
        (["lr_k_decay=1e300"], "sched: cosine has no learning rate: "),
        (["model_kwargs.num_heads=3"], "cannot be built with model_kwargs"),
        (["model=local-dir:nowhere"], "local-dir:nowhere is no model that timm can load"),
        (["model_kwargs.mlp_ratio=x"], "cannot be built with model_kwargs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_only_the_parts_know_is_refused_in_one_line(place, overrides, message):
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides)
    assert code == 2 and message in shown, shown
    assert shown.count("\n") == 1 and "Traceback" not in shown


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("wrong")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    return write_recipe(folder / "tiny.yaml", **values)


WRONG = {
    "num_frames=6": "a clip needs",
    "num_frames=3": "num_frames must be a multiple of tubelet_size",
    "num_frames=null": "val_clips is for videos: it needs num_frames",
    "val_crops=2": "val_crops",
    "channels_last=true": "channels_last is for images",
    "aa=rand-m9-mstd0.5": "trivial or rand-mM-nN",
    "remode=rand": "another color",
    "model=performer_rpe2d_tiny_patch16_224": "unexpected keyword argument",
    "video_decoder=ffmpeg": "video_decoder",
    "frame_stride=0": "frame_stride",
    "crop_pct=1.5": "crop_pct of clips is at most 1, got 1.5",
    "interpolation=wavelet": "no interpolation 'wavelet' for clips",
    "model_kwargs.num_frames=8": "num_frames is 4, and 8 in model_kwargs",
    "data_source=digits": "data_source digits makes images: take away num_frames",
}


@pytest.mark.parametrize("override", WRONG)
def test_one_line_for_what_cannot_be(recipe, override):
    more = ["frame_stride=2"] if override == "num_frames=6" else []
    code, shown = train("--recipe", recipe, override, *more, f"experiment={override[:9]}")
    error = [line for line in shown.splitlines() if "error:" in line]
    assert code == 2 and len(error) == 1 and WRONG[override] in error[0], shown


def test_images_are_no_videos(tmp_path, recipe):
    write_shard(tmp_path / "x-train-000.tar", map(sample, range(12)))
    write_shard(tmp_path / "x-val-000.tar", map(sample, range(12)))
    code, shown = train("--recipe", recipe, f"data_dir={tmp_path}", "experiment=images")
    assert code == 2 and "missing member: no" in shown
