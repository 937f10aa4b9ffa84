"""The examples of docs/extending.md run, and keep what they promise."""

import re
from pathlib import Path

import pytest
import torch

from tests.masks.contract import MaskContract
from vit_rpe.features import names as feature_names
from vit_rpe.models import names as rpe_names

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def lines(block: str) -> int:
    return len([line for line in block.splitlines() if line.strip()])


@pytest.fixture(scope="module")
def names():
    """What the blocks define, one after the other; registries are left as they were."""
    maps, rpes = dict(feature_names.ELEMENTWISE), dict(rpe_names.RPES)
    found: dict = {}
    torch.manual_seed(0)
    for block in BLOCKS:
        exec(compile(block, "extending.md", "exec"), found)
    yield found
    feature_names.ELEMENTWISE.clear()
    feature_names.ELEMENTWISE.update(maps)
    rpe_names.RPES.clear()
    rpe_names.RPES.update(rpes)


def test_examples_are_short():
    assert len(BLOCKS) == 7 and max(map(lines, BLOCKS)) <= 32


class TestBand(MaskContract):
    @pytest.fixture(autouse=True)
    def _band(self, names):
        self.band = names["Band"]

    def make(self):
        return self.band(11, 3)


def test_attention_with_a_new_mask_and_a_new_map(names):
    from vit_rpe.attention import masked_attention

    q, v, mask = names["q"], names["v"], names["Band"](50, 4)
    torch.testing.assert_close(names["near"], masked_attention(q, q, v, mask))
    cubes = q.abs() ** 3
    torch.testing.assert_close(names["cubes"], masked_attention(cubes, cubes, v, mask))


def test_models_with_new_names(names):
    assert isinstance(names["cube_model"].blocks[0].attn.features, names["CubeFeatures"])
    model = names["power_model"]
    model.set_input_size((96, 128))
    out = model(torch.rand(1, 3, 96, 128))
    out.sum().backward()
    assert names["logits"].shape == (1, 1000)
    assert model.blocks[0].attn.rpe.power.grad.isfinite().all()


def test_a_new_key(names):
    assert names["recipe"].patience == 3
    with pytest.raises(ValueError):
        names["WithPatience"](data_dir="data/digits", patience="often")
