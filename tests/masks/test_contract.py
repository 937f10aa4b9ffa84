"""The contract on every mask of the zoo."""

import pytest

from tests.masks.contract import MaskContract
from tests.zoo import ZOO
from vit_rpe.masks import Mask


@pytest.mark.parametrize("name", ZOO)
class TestZoo(MaskContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make(self) -> Mask:
        return ZOO[self.name]()
