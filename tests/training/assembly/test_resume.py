"""A run's folder after all that people and file systems do to it: nothing is lost or restarted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.training.launch import launch, train
from tests.training.runs import assert_same_run, losses, make_data, progress, write_recipe
from tests.training.stops import run_and_stop
from vit_rpe.cli.train import main
from vit_rpe.data import FolderLock
from vit_rpe.training import CheckpointError, RecipeError
from vit_rpe.training.assembly.resume import find_resume
from vit_rpe.training.loop.optim import Schedule
from vit_rpe.training.recipe.file import load_recipe
from vit_rpe.training.record.checkpoint import Checkpoints
from vit_rpe.training.record.find import find_checkpoint
from vit_rpe.training.record.integrity import read_state

REFUSED = "holds a run already: resume=auto continues it"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A run of 3 epochs that was stopped in the third, and the same run to its end."""
    folder = tmp_path_factory.mktemp("runs")
    data = make_data(folder / "data")
    recipe = write_recipe(folder / "a.yaml", data_dir=data, output=str(folder), recovery_interval=3)
    stop = {"where": "step", "at": 12, "rank": 0, "signal": 15}
    assert launch(run_and_stop, recipe, stop) == [75]
    shutil.copytree(folder / "a", folder / "whole", symlinks=True)
    code, shown = train("--recipe", recipe, "experiment=whole", "resume=auto")
    assert code == 0 and "best        eval_top1 " in shown
    return folder


def again(place: Path, *overrides: str) -> tuple[int, str]:
    return train("--recipe", str(place / "a.yaml"), *overrides)


@pytest.fixture
def copy(place, tmp_path) -> Path:
    return Path(shutil.copytree(place / "a", tmp_path / "a", symlinks=True))


def _unlink(folder: Path) -> None:
    for link in ("last", "best"):
        (folder / link).unlink()


def _dangle(folder: Path) -> None:
    _unlink(folder)
    (folder / "last").symlink_to("epoch-0099")


def _loop(folder: Path) -> None:
    _unlink(folder)
    (folder / "last").symlink_to("last")


def _follow(folder: Path) -> None:
    """As `cp -rL` does."""
    shutil.move(folder, folder.with_name("linked"))
    shutil.copytree(folder.with_name("linked"), folder)
    shutil.rmtree(folder.with_name("linked"))


def _only_last(folder: Path) -> None:
    _follow(folder)
    for name in ("best", "epoch-0001", "epoch-0002", "step-00000013"):
        shutil.rmtree(folder / name)


@pytest.mark.parametrize("change", [_unlink, _dangle, _loop, _follow, _only_last])
def test_a_run_is_found_without_its_links(place, copy, change):
    change(copy / "checkpoints")
    begin = load_recipe(place / "a.yaml", [f"output={copy.parent}"])
    with pytest.raises(RecipeError, match=REFUSED):
        find_resume(begin, copy)
    expected = "last" if change is _only_last else "step-00000013"
    resume = begin.model_copy(update={"resume": "auto"})
    assert find_resume(resume, copy) == copy / "checkpoints" / expected
    best = "last" if change is _only_last else read_state(find_checkpoint(copy)).ranking[0]
    assert find_checkpoint(copy, "best").name == best


@pytest.mark.parametrize("change", [_loop, _follow, _only_last])
def test_a_run_goes_on_without_its_links(place, copy, change):
    """And removes nothing that it did not write itself."""
    change(copy / "checkpoints")
    (copy / "checkpoints" / "my_model").mkdir()
    (copy / "checkpoints" / "epoch-0077").mkdir()
    before = {path.name for path in (copy / "checkpoints").iterdir() if not path.is_symlink()}
    code, shown = again(place, f"output={copy.parent}", "resume=auto")
    assert code == 0 and "step 14/15" in shown and "step 13/15" not in shown
    after = {path.name for path in (copy / "checkpoints").iterdir()}
    assert {"my_model", "epoch-0077", "last", "best", "epoch-0003"} <= after
    assert before - after <= {"step-00000013", "step-00000012"}
    names = ("last",) if change is _only_last else ("last", "best")
    assert (copy / "checkpoints" / "last").is_symlink()
    assert_same_run(copy, place / "whole", names)


def test_a_run_without_any_whole_checkpoint_is_not_started_anew(place, copy):
    for path in list((copy / "checkpoints").iterdir()):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    recipe = load_recipe(place / "a.yaml", [f"output={copy.parent}"])
    with pytest.raises(RecipeError, match=REFUSED):
        find_resume(recipe, copy)
    with pytest.raises(CheckpointError, match="but no whole checkpoint of it"):
        find_resume(recipe.model_copy(update={"resume": "auto"}), copy)


def test_a_damaged_newest_checkpoint_is_passed_over(place, copy):
    newest, wrong = Checkpoints(copy / "checkpoints").newest()
    assert newest is not None and newest.name == "step-00000013" and not wrong
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    code, shown = again(place, f"output={copy.parent}", "resume=auto")
    assert code == 0
    first = shown.splitlines()[0]
    assert (
        first.startswith("vit-rpe train: warning: ") and "step-00000013/model.safetensors" in first
    )
    assert first.endswith("; continuing from epoch-0002")
    assert_same_run(copy, place / "whole")
    assert newest.is_dir(), "it is evidence, and not listed by what the run went on from"


def test_an_older_run_goes_on_with_epochs_from_1(place, copy):
    """Older checkpoints have neither serial numbers nor checksums of states, and count from 0."""
    for file in (copy / "checkpoints").glob("*/state.json"):
        if not file.parent.is_symlink():
            state = json.loads(file.read_text())
            for key in ("checksum", "serial", "written"):
                del state[key]
            for row in state["progress"]["state"]["history"]:
                row["epoch"] -= 1
            file.write_text(json.dumps(state))
    code, shown = again(place, f"output={copy.parent}", "resume=auto")
    assert code == 0, shown
    assert_same_run(copy, place / "whole")
    assert [line.split(",")[0] for line in (copy / "summary.csv").read_text().split()[1:]] == list(
        "123"
    )


def test_a_checkpoint_of_another_run_does_not_replace_this_one(place, copy):
    overrides = [f"output={copy.parent}", f"resume={place / 'whole'}"]
    with pytest.raises(RecipeError, match=f"{copy} holds another run than"):
        find_resume(load_recipe(place / "a.yaml", overrides), copy)


def test_a_finished_run_gets_longer_exactly(place, tmp_path):
    """The schedule is that of the longer run from where the shorter one ended; stopping again
    changes nothing."""
    for name in ("longer", "stopped"):
        shutil.copytree(place / "whole", tmp_path / name, symlinks=True)
    options = (f"output={tmp_path}", "resume=auto", "epochs=5")
    assert again(place, *options, "experiment=longer")[0] == 0
    stop = {"where": "step", "at": 21, "rank": 0, "signal": 15}
    recipe = str(place / "a.yaml")
    assert launch(run_and_stop, recipe, stop, *options, "experiment=stopped") == [75]
    assert again(place, *options, "experiment=stopped")[0] == 0
    assert_same_run(tmp_path / "longer", tmp_path / "stopped")
    assert progress(tmp_path / "longer")["epoch"] == 5
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-2)
    schedules = [Schedule(load_recipe(recipe, [n]), optimizer, 5) for n in ("epochs=3", "epochs=5")]
    for step, _, lr, _ in losses(tmp_path / "longer"):
        schedules[step > 15].at(step - 1)
        assert lr == optimizer.param_groups[0]["lr"]
    code, shown = again(place, *options[:2], "experiment=longer")
    assert code == 2 and "epochs: the run began with 5, now it is 3" in shown


@pytest.mark.parametrize(
    "output", ["/sys/foo", "/proc/foo", "{tmp}/file", "{tmp}/" + 300 * "x"], ids=lambda v: v[:9]
)
def test_a_folder_that_cannot_be_made_is_one_line(place, tmp_path, output):
    (tmp_path / "file").write_text("")
    code, shown = again(place, f"output={output.format(tmp=tmp_path)}")
    assert (
        code == 2 and shown.startswith("vit-rpe train: error: [Errno ") and shown.count("\n") == 1
    )


def full_disk(recipe: str, *overrides: str) -> int:
    """No file can grow beyond 60 kB, which is less than the weights need."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    return main(["--recipe", recipe, *overrides])


@pytest.mark.parametrize("world", [1, 2])
def test_a_full_disk_is_one_line_and_loses_nothing(place, copy, world, capfd):
    before = find_checkpoint(copy)
    options = (f"output={copy.parent}", "resume=auto", "model_kwargs.path=explicit")
    codes = launch(full_disk, str(place / "a.yaml"), *options, world=world)
    assert codes == [2] * world
    assert "Traceback" not in capfd.readouterr().err
    assert find_checkpoint(copy) == before and again(place, *options[:2])[0] == 0


def test_a_second_run_in_a_folder_is_refused(place, copy):
    with FolderLock(copy, "run"):
        recipe = ("--recipe", str(place / "a.yaml"), f"output={copy.parent}", "resume=auto")
        code, shown = train(*recipe, world=2)
    assert code == 2 and shown.count("\n") == 1
    assert f"{copy} is in use by another run: process {os.getpid()} on " in shown
    assert not (place / "whole" / ".lock").exists()


def test_other_numbers_in_a_run_that_is_there_name_the_way_out(place, copy):
    code, shown = again(place, f"output={copy.parent}", "resume=auto", "seed=7")
    assert code == 2 and "seed: the run began with 3, now it is 7" in shown, shown
    assert "experiment=NAME starts another" in shown and shown.count("\n") == 1
