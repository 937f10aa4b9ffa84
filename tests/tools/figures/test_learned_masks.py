from importlib import import_module

import pytest
import torch
from timm.models import save_for_hf

import vit_rpe
from vit_rpe.rpe import OffsetRPE

assert vit_rpe


@pytest.fixture(scope="module")
def tool():
    return import_module("tools.figures.learned_masks")


def shaken(grid, heads=2):
    rpe = OffsetRPE(grid, heads, init="decay")
    with torch.no_grad():
        rpe.table.add_(0.3 * torch.randn_like(rpe.table))
    return rpe


def test_weights_by_offset_are_the_table(tool):
    rpe = shaken((3, 5))
    found = tool.by_offset(rpe().dense().double(), (3, 5))
    torch.testing.assert_close(found, rpe.table.exp().double(), rtol=1e-5, atol=1e-6)


def test_the_range_by_hand(tool):
    """A grid of 1 x 3: from the middle all are 0 or 1 away, from the ends up to 2."""
    weights = torch.tensor([[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0], [0.0, 0.0, 4.0]]])
    assert tool.mean_distance(weights, (1, 3)).tolist() == pytest.approx([(1 + 0.5 + 0) / 3])


def test_a_model_is_drawn_and_its_ranges_printed(tool, tmp_path, capsys):
    import timm

    args = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 3, "num_heads": 2}
    model = timm.create_model("performer_rpe2d_tiny_patch16_224", num_classes=10, **args)
    with torch.no_grad():
        model.blocks[2].attn.rpe.table[1].fill_(-9.0)
        model.blocks[2].attn.rpe.table[1, 3, 3] = 0.0  # this head sees only the query itself
    save_for_hf(model, tmp_path / "model", safe_serialization=True, model_args=args)
    picture = tmp_path / "new" / "masks.png"
    assert tool.main([str(tmp_path / "model"), "--output", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| layer | head 0 | head 1 |" in shown
    assert "| 0 | 2.50 | 2.50 |" in shown and "| 2 | 2.50 | 0.00 |" in shown
    assert "Without a mask the range is 2.50 tokens." in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_tiny_patch16_224", "no masks to draw"),
        ("performer_rpe3d_tiny_patch16_224", "two sides"),
    ],
)
def test_what_cannot_be_drawn(tool, name, message):
    import timm

    with pytest.raises(ValueError, match=message):
        tool.learned_masks(timm.create_model(name, depth=1))
