"""What a new user does in the first hour, wrongly: one line that says what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.training.launch import train
from tests.training.runs import TINY, make_data, make_named, write_recipe
from vit_rpe.training import RecipeError
from vit_rpe.training.recipe.file import check
from vit_rpe.training.recipe.nearest import ALIASES, nearest
from vit_rpe.training.recipe.schema import Recipe

NAMES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    make_named(folder / "shards", NAMES)
    values: dict[str, Any] = {"data_dir": str(folder / "shards"), "output": str(folder)}
    write_recipe(folder / "a.yaml", **values, num_classes=None, epochs=2, model_ema=True)
    code, shown = train("--recipe", str(folder / "a.yaml"), "experiment=run")
    assert code == 0, shown
    return folder


def refused(place: Path, *overrides: str) -> str:
    """The one line with which a recipe is refused."""
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides)
    assert code == 2 and shown.count("\n") == 1, shown
    return shown


def test_a_folder_of_images_names_the_tool_that_makes_shards(place):
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (place / "images" / "train" / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(place / "images" / "train" / name)
    line = refused(place, f"data_dir={place}/images")
    assert f"python tools/make_shards.py folder {place}/images SHARDS" in line
    assert "(tools/make_shards.py makes shards)" in refused(place, "data_dir=nowhere")


def test_a_missing_validation_split_names_the_way_without(place):
    make_named(place / "only", NAMES, ("train",))
    line = refused(place, f"data_dir={place}/only")
    assert "no split 'val'" in line and "val_split=null trains without evaluation" in line
    assert "val_split=null" not in refused(place, "train_split=nonsense")


def test_other_numbers_in_a_run_that_is_there_name_the_way_out(place):
    line = refused(place, "experiment=run", "resume=auto", "seed=7")
    assert "seed: the run began with" in line and "experiment=NAME starts another" in line


def test_more_classes_than_the_shards_have_and_lost_pixels_are_said(place):
    overrides = ["num_classes=7", "img_size=11", "experiment=odd"]
    code, shown = train("--recipe", str(place / "a.yaml"), *overrides, "--dry-run")
    assert code == 0 and "7 classes (num_classes), of which the shards name 3" in shown, shown
    assert "warning: img_size 11 is no multiple of the patch size 4" in shown
    assert "does not see the last 3 rows and columns" in shown
    plain = train("--recipe", str(place / "a.yaml"), "--dry-run")[1]
    assert "warning" not in plain and "3 classes\n" in plain


@pytest.mark.parametrize("key", ["learning_rate", "num_workers", "image_size", "output-dir", "wd"])
def test_names_of_other_trainers_lead_to_ours(key):
    meant = {"learning_rate": "lr", "num_workers": "workers", "image_size": "img_size"}
    meant |= {"output-dir": "output", "wd": "weight_decay"}
    with pytest.raises(RecipeError, match=f"no key '{key}'; nearest is '{meant[key]}'"):
        check({**TINY, "data_dir": "x", key: 1}, {}, "a.yaml")


def test_every_alias_leads_to_a_key_and_hides_none():
    assert set(ALIASES) <= set(Recipe.model_fields)
    aliases = [alias for names in ALIASES.values() for alias in names]
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(Recipe.model_fields)
    assert nearest("learning_rate", ["vit_tiny"]) == ""


# --- weights of another model


def weights(place: Path, name: str, **options: Any) -> str:
    file = place / "weights" / f"{name}-{len(options)}.safetensors"
    file.parent.mkdir(exist_ok=True)
    model = timm.create_model(name, num_classes=3, **options)
    save_file(model.state_dict(), file)
    return str(file)


SMALL = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.mark.parametrize("classes", [3, 5], ids=["same classes", "other classes"])
def test_weights_of_another_model_say_what_does_not_fit(place, classes):
    def line(file: str) -> str:
        return refused(
            place, "experiment=x", f"num_classes={classes}", f"initial_checkpoint={file}"
        )

    no_token = {"class_token": False, "global_pool": "avg"}
    vit = line(weights(place, "vit_tiny_patch16_224", **SMALL, **no_token))
    assert "tools/convert_timm.py makes a Performer of them" in vit
    token = line(weights(place, "performer_rpe2d_tiny_patch16_224", **SMALL))
    assert "the weights have a class token, the model not" in token
    other = line(weights(place, "resnet10t"))
    assert "does not fit performer_rpe2d_tiny_patch16_224: the model has " in other
    assert "the weights have " in other and len(other) < 700
    wide = {**SMALL, "embed_dim": 32, **no_token}
    wider = line(weights(place, "performer_rpe2d_tiny_patch16_224", **wide))
    assert "have another shape (pos_embed" not in wider and "(32,) for (16,)" in wider


def test_the_body_is_loaded_where_the_classes_differ(place):
    torch.manual_seed(5)
    no_token = {"class_token": False, "global_pool": "avg"}
    file = weights(place, "performer_rpe2d_tiny_patch16_224", **SMALL, **no_token)
    start = [f"initial_checkpoint={file}", "num_classes=6", "lr=1e-12", "weight_decay=0"]
    more = ["experiment=body", "warmup_lr=0", "epochs=1", "warmup_epochs=0"]
    code, shown = train("--recipe", str(place / "a.yaml"), *start, *more)
    assert code == 0, shown
    folder = f"local-dir:{place}/body/checkpoints/last"
    model: Any = timm.create_model(folder, pretrained=True)
    torch.manual_seed(5)
    same: Any = timm.create_model(
        "performer_rpe2d_tiny_patch16_224", num_classes=3, **SMALL, **no_token
    )
    torch.testing.assert_close(model.blocks[1].mlp.fc1.weight, same.blocks[1].mlp.fc1.weight)
    assert model.head.weight.shape == (6, 16) and len(model.pretrained_cfg["label_names"]) == 3


# --- names of classes


@pytest.mark.parametrize("part", ["", "/ema"])
def test_a_checkpoint_knows_its_classes(place, part):
    folder = place / "run" / "checkpoints" / f"best{part}"
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert model.pretrained_cfg["label_names"] == NAMES and model.num_classes == 3
    config = json.loads((folder / "config.json").read_text())
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 3


def test_without_names_a_checkpoint_names_none(tmp_path):
    data = make_data(tmp_path / "data")
    recipe = write_recipe(
        tmp_path / "b.yaml", data_dir=data, output=str(tmp_path), warmup_epochs=0, epochs=1
    )
    code, shown = train("--recipe", recipe)
    assert code == 0, shown
    model: Any = timm.create_model(f"local-dir:{tmp_path}/b/checkpoints/last", pretrained=True)
    assert model.pretrained_cfg.get("label_names") is None and model.num_classes == 10
