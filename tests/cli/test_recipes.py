"""Recipes and launch files by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vit_rpe import shipped
from vit_rpe.cli.recipes import main
from vit_rpe.training import RecipeError, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_the_list_has_every_file(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for path in RECIPES.rglob("*.yaml"):
        assert f"  {path.stem} " in shown
    headings = [line for line in shown.splitlines() if not line.startswith(" ")]
    kinds = [line.partition(", for ")[0] for line in headings]
    assert kinds == ["recipes", "studies", "launch files"]


def test_show_and_path(capsys):
    assert main(["show", "quickstart"]) == 0
    assert capsys.readouterr().out == (RECIPES / "quickstart.yaml").read_text()
    assert main(["path", "cpu_x2"]) == 0
    printed = Path(capsys.readouterr().out.strip())
    assert printed.samefile(RECIPES / "accelerate" / "cpu_x2.yaml")


def test_a_copy_is_never_written_over(tmp_path, capsys):
    """And one that extends another recipe still finds it, by name."""
    assert main(["copy", "video_quickstart_performer", str(tmp_path / "mine")]) == 0
    copy = tmp_path / "mine" / "video_quickstart_performer.yaml"
    assert capsys.readouterr().out == f"{copy}\n"
    assert load_recipe(copy) == load_recipe("video_quickstart_performer")
    copy.write_text("changed")
    with pytest.raises(SystemExit) as stop:
        main(["copy", "video_quickstart_performer", str(tmp_path / "mine")])
    assert stop.value.code == 2 and "is there already" in str(stop.value)
    assert copy.read_text() == "changed"


@pytest.mark.parametrize("action", ["show", "copy", "path"])
def test_a_wrong_name_lists_the_nearest(action):
    with pytest.raises(SystemExit, match="'cpu_2x'; nearest is 'cpu_x2'") as stop:
        main([action, "cpu_2x"])
    assert stop.value.code == 2


def test_files_come_before_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = load_recipe("quickstart")
    assert named == load_recipe("quickstart.yaml") == load_recipe(RECIPES / "quickstart.yaml")
    assert named.experiment == "quickstart"
    Path("mine.yaml").write_text("extends: quickstart\nepochs: 7\n")
    changed = {"epochs": 7, "experiment": "mine"}
    assert load_recipe("mine.yaml") == named.model_copy(update=changed)
    Path("quickstart.yaml").write_text("model: vit_tiny_patch16_224\ndata_dir: x\nepochs: 3\n")
    assert load_recipe("quickstart.yaml").epochs == 3
    assert load_recipe("mine.yaml").model == named.model, "no file beside it is called quickstart"
    for name in ("cpu_x2", "recipes/quickstart.yaml", "quickstrat"):
        with pytest.raises(RecipeError, match="no such recipe"):
            load_recipe(name)


def test_an_installed_package_has_its_own(tmp_path, monkeypatch):
    folder = tmp_path / "vit_rpe" / "recipes" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "two.yaml").write_text("# Two.")
    monkeypatch.setattr(shipped, "HERE", tmp_path / "vit_rpe")
    assert shipped.find_shipped("two") == folder / "two.yaml"
    assert shipped.shipped() == {}
