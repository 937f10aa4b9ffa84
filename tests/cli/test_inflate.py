"""An image model that was trained becomes a video model with the same logits on still clips."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import timm
import torch

from tests.training.launch import train
from tests.training.runs import TINY, make_data, write_recipe
from tests.training.video_runs import VIDEO, make_videos


@pytest.fixture(scope="module")
def tool():
    return import_module("vit_rpe.cli.inflate")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inflate")
    values = {**TINY, "data_dir": make_data(folder / "data"), "output": str(folder), "epochs": 2}
    code, shown = train("--recipe", write_recipe(folder / "image.yaml", **values))
    assert code == 0, shown
    return folder


def test_a_run_is_inflated_and_trained_on(tool, place, capsys):
    out = place / "video"
    tool.main(["--checkpoint", f"{place}/image", "--output", str(out), "--num-frames", "4"])
    assert "performer_rpe3d_tiny_patch16_224 for 4 frames" in capsys.readouterr().out
    image = timm.create_model(f"local-dir:{place}/image/checkpoints/best", pretrained=True).eval()
    video = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    x = torch.randn(2, 3, 8, 8)
    still = x[:, :, None].repeat(1, 1, 4, 1, 1)
    torch.testing.assert_close(video(still), image(x), rtol=1e-4, atol=1e-4)
    recipe = write_recipe(
        place / "clips.yaml",
        **{**VIDEO, "data_dir": make_videos(place / "videos"), "output": str(place), "epochs": 2},
        initial_checkpoint=str(out),
    )
    code, shown = train("--recipe", recipe)
    assert code == 0, shown


def test_wrong_input_gives_one_line(tool, place, tmp_path):
    for arguments, message in (
        ([f"{tmp_path}/none"], "none"),
        ([f"{place}/image", "--num-frames", "3"], "multiple of tubelet_size"),
        ([f"{place}/image", "--model", "performer_rpe4d"], "timm has no model 'performer_rpe4d'"),
        ([f"{place}/image", "--model", "vit_tiny_patch16_224"], "is no video model"),
    ):
        with pytest.raises(SystemExit) as stop:
            tool.main([*arguments, "--output", str(tmp_path / "out")])
        text = str(stop.value)
        assert stop.value.code == 2
        assert text.startswith("vit-rpe inflate: error: ") and message in text and "\n" not in text
    tool.main([f"{place}/image", "--output", f"{place}/once", "--num-frames", "4"])
    with pytest.raises(SystemExit, match="cannot inflate PerformerVideo"):
        tool.main([f"{place}/once", "--output", f"{place}/twice"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        tool.main([f"{place}/image", "--output", str(tmp_path / "full")])
