"""Weights of other models: what fits is loaded, what does not is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.training.launch import train
from tests.training.runs import make_named, write_recipe

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
    assert "vit-rpe convert makes a Performer of them" in vit
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
