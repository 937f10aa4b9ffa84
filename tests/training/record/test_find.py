"""A run, a checkpoint or a file of weights is found, if it is whole."""

from __future__ import annotations

import shutil

import pytest
import torch

from vit_rpe.training import CheckpointError
from vit_rpe.training.assembly.model import build_model
from vit_rpe.training.recipe.file import load_recipe
from vit_rpe.training.record.find import find_checkpoint, find_weights, saved_recipe


def test_weights_come_from_safetensors_alone(tmp_path):
    torch.save({}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="weights are read from .safetensors files only"):
        find_weights(tmp_path / "a.pth")


def test_weights_are_checked_wherever_they_are_read(run, copy):
    for resume in (copy / "checkpoints" / "epoch-0001", find_checkpoint(copy)):
        file = resume / "model.safetensors"
        assert find_weights(resume) == file == find_weights(file)
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        with pytest.raises(CheckpointError, match="model.safetensors is damaged: its checksum"):
            find_weights(resume)
    recipe = load_recipe(run.parent / "a.yaml", [f"initial_checkpoint={copy}"])
    with pytest.raises(CheckpointError, match="is damaged: its checksum"):
        build_model(recipe, 10)


def test_a_recipe_that_lies_two_folders_above_is_not_the_run_s(run, tmp_path):
    shutil.copy(run.parent / "a.yaml", tmp_path / "recipe.yaml")
    shutil.copytree(find_checkpoint(run), tmp_path / "x" / "ck")
    with pytest.raises(CheckpointError, match="is not in the checkpoints/ of a run"):
        saved_recipe(tmp_path / "x" / "ck")
