"""Checkpoints: whole or not at all, exact for every optimiser, and never code."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import timm
import torch
from accelerate.utils import is_wandb_available
from timm.optim import create_optimizer_v2, list_optimizers
from torch import nn

from tests.data.samples import sample, write_shard
from tests.training.launch import train
from tests.training.runs import make_data, write_recipe
from vit_rpe.training import CheckpointError
from vit_rpe.training.loop.optim import seed_optimizer
from vit_rpe.training.record.checkpoint import Checkpoints, Snapshot, read_checkpoint
from vit_rpe.training.record.find import find_checkpoint, find_weights
from vit_rpe.training.record.state_tree import flatten, restore

ELSEWHERE = ("bnb", "fused")  # need other packages and a GPU
OPTIMISERS = [name for name in list_optimizers() if not name.startswith(ELSEWHERE)]


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        loss = model(torch.randn(7, 6)).square().mean()
        loss.backward(create_graph=getattr(optimizer, "is_second_order", False))
        seed_optimizer(optimizer, torch.device("cpu"), 7, seed)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", [*OPTIMISERS, "lookahead_adamw"])
@pytest.mark.filterwarnings("ignore:Using backward", "ignore:It is highly recommended")
def test_the_state_of_every_optimiser_survives(name, monkeypatch):
    """Three steps, through JSON and tensors into a new optimiser, two more: bit-equal."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # kron compiles for long

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
        return model, create_optimizer_v2(model, name, lr=1e-2, weight_decay=0.1)

    one, optimizer = make()
    _steps(one, optimizer, range(3))
    two, other = make()
    two.load_state_dict(one.state_dict())
    tree, tensors = flatten(optimizer.state_dict())
    other.load_state_dict(restore(json.loads(json.dumps(tree)), tensors))
    _steps(one, optimizer, range(3, 5))
    _steps(two, other, range(3, 5))
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        assert (ours == theirs).all()


def test_state_that_is_not_plain_is_refused():
    value = {"a": [1, (2.5, None), {"3": torch.eye(2)}], 4: True}
    tree, tensors = flatten(value)
    back = restore(json.loads(json.dumps(tree)), tensors)
    assert back["a"][:2] == [1, (2.5, None)] and back[4] is True
    assert (back["a"][2]["3"] == torch.eye(2)).all()
    with pytest.raises(TypeError, match=".a is a object, which no checkpoint can hold"):
        flatten({"a": object()})
    with pytest.raises(TypeError, match="keys of a state must be strings or integers"):
        flatten({(1, 2): 3})


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


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = [
    ("model.safetensors", _cut, "model.safetensors is damaged: its checksum"),
    ("optimizer.safetensors", _flip, "optimizer.safetensors is damaged: its checksum"),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("state.json", _cut, "state.json is damaged"),
    ("state.json", Path.unlink, "state.json is missing; a run cannot be resumed from weights"),
    (
        "state.json",
        lambda p: p.write_text('{"version": 99}'),
        "has version 99, this program reads 1",
    ),
    ("config.json", _flip, "config.json is damaged: its checksum"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_damage_is_named(copy, name, damage, message):
    folder = find_checkpoint(copy)
    damage(folder / name)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    assert message in str(error.value) and str(folder) in str(error.value)


def test_a_damaged_checkpoint_stops_a_run_that_names_it_in_one_line(run, copy):
    _cut(find_checkpoint(copy) / "model.safetensors")
    code, shown = again(run, copy, f"resume={copy}")
    assert code == 2 and "model.safetensors is damaged" in shown and shown.count("\n") == 1


REFUSED = [
    ([], "holds a run already: resume=auto goes on with it, experiment=NAME starts another"),
    (
        ["resume=auto", "lr=0.5"],
        "lr: the run began with 0.01, now it is 0.5; a run goes on only as",
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
    assert shown.count("\n") == 1 and shown.startswith("train.py: error: ")
    assert not (copy.parent / "b").exists()


def test_other_processes_need_other_parts(run, copy):
    recipe = ["--recipe", str(run.parent / "a.yaml"), f"output={copy.parent}", "experiment=b"]
    code, shown = train(*recipe, "batch_size=7", world=2)
    assert code == 2
    assert "batch_size 7 has no equal parts for 2 processes x grad_accum_steps 1" in shown


def test_shards_of_another_set_are_refused(run, copy, tmp_path):
    data = make_data(tmp_path / "other", train=50)
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 2 and "was made with shards of other lengths than those at" in shown


def test_other_samples_in_shards_of_the_same_lengths_are_refused(run, copy, tmp_path):
    data = Path(make_data(tmp_path / "other"))
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 0, shown  # a copy of the data in another place
    write_shard(data / "x-train-000.tar", (sample(i, label=1) for i in range(14)))
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 2 and "was made with other data than those at" in shown, shown
    state = copy / "checkpoints" / "last" / "state.json"
    before = json.loads(state.read_text())
    assert re.fullmatch("[0-9a-f]{64}", before["progress"].pop("data"))
    del before["checksum"]
    state.write_text(json.dumps(before))  # as checkpoints were before
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 0, shown


def test_a_finished_run_is_left_as_it_is(run, copy):
    code, shown = again(run, copy, "resume=auto")
    assert code == 0 and "finished: 2 epochs, 10 steps" in shown
    assert (run / "summary.csv").read_bytes() == (copy / "summary.csv").read_bytes()


def test_weights_come_from_safetensors_alone(tmp_path):
    torch.save({}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="weights are read from .safetensors files only"):
        find_weights(tmp_path / "a.pth")


def test_names_that_are_taken_get_a_number(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1-2").mkdir()
    assert checkpoints.free("step-1") == "step-1-3" and checkpoints.free("step-2") == "step-2"


def test_what_is_not_needed_is_removed(tmp_path):
    """And nothing else: neither other people's folders nor those of another run."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.written = ["epoch-1", "epoch-2", "epoch-3", "mine"]
    foreign = {"epoch-9", "my_model", ".part-mine", "mine"}
    for name in ("epoch-1", "epoch-2", "epoch-3", ".part-epoch-4", ".part-epoch-2", *foreign):
        (tmp_path / name).mkdir()
    (tmp_path / "epoch-5").write_text("a file")
    (tmp_path / "loop").symlink_to("loop")
    checkpoints.point("last", "epoch-3")
    checkpoints.keep_only(["epoch-1"])
    left = {"epoch-1", "epoch-3", "last", "loop", "epoch-5", *foreign}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert checkpoints.written == ["epoch-1", "epoch-3", "mine"]
    (tmp_path / ".part-best").symlink_to("epoch-9")  # by a process that was killed just then
    checkpoints.written = ["epoch-1", "epoch-3"]
    checkpoints.settle(["epoch-2", "epoch-1"])
    links = {name: os.readlink(tmp_path / name) for name in ("last", "best")}
    assert links == {"last": "epoch-3", "best": "epoch-1"}
    assert {path.name for path in tmp_path.iterdir()} == {*left, "best"}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def test_last_is_whole_at_every_moment_of_saving(tmp_path, monkeypatch):
    """The process ends before the n-th call that changes or syncs a file, for every n."""
    model = timm.create_model("resnet10t", num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    snapshot = Snapshot(model.state_dict(), model.state_dict(), optimizer.state_dict())
    Checkpoints(tmp_path / "0").save("epoch-1", {"epoch": 1}, snapshot, model, {})
    calls, limit, armed, finished = 0, 0, False, False
    for name in ("fsync", "replace", "rename", "unlink", "symlink"):
        system = getattr(os, name)

        def call(*args, system=system, **options):
            nonlocal calls
            calls += armed
            if armed and calls == limit:
                raise Killed
            return system(*args, **options)

        monkeypatch.setattr(os, name, call)
    while not finished:
        calls, limit = 0, limit + 1
        shutil.copytree(tmp_path / "0", tmp_path / str(limit), symlinks=True)
        checkpoints = Checkpoints(tmp_path / str(limit))
        checkpoints.adopt(checkpoints.folder / "epoch-1")
        armed = True
        try:
            checkpoints.save("epoch-2", {"epoch": 2}, snapshot, model, {})
            checkpoints.keep_only([])
            finished = True
        except Killed:
            pass
        armed = False
        newest, _ = Checkpoints(checkpoints.folder).newest()
        assert newest is not None, f"nothing whole after an end before call {limit}"
        for folder in (newest, checkpoints.folder / "last"):
            progress, _ = read_checkpoint(folder)
            assert progress["epoch"] == 2 if finished else progress["epoch"] in (1, 2)
    assert limit > 12
    assert {path.name for path in checkpoints.folder.iterdir()} == {"epoch-2", "last"}
