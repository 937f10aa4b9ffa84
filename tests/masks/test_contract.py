"""The contract on every mask of the zoo."""

import pytest

from tests.masks.contract import MaskContract
from tests.zoo import HEADS, ZOO, rand
from vit_rpe.masks import Mask, Toeplitz


@pytest.mark.parametrize("name", ZOO)
class TestZoo(MaskContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make(self) -> Mask:
        return ZOO[self.name]()


class Careless(Toeplitz):
    """A mask whose author took |M| for the scale of its round-off, which an FFT does not have."""

    def abs_bound(self) -> Mask:
        return Toeplitz(self.offsets.detach().abs(), self.grid)


def test_a_wrong_magnitude_is_caught():
    suite = MaskContract()
    suite.make = lambda: Careless(rand(HEADS, 23, 25), (12, 13))
    with pytest.raises(AssertionError):
        suite.test_round_off_stays_within_the_magnitude()
    suite.make = lambda: Toeplitz(rand(HEADS, 23, 25), (12, 13))
    suite.test_round_off_stays_within_the_magnitude()
