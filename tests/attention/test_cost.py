from dataclasses import asdict

import pytest
import timm
import torch

from vit_rpe.attention import PathCosts, calibrate, choose_path
from vit_rpe.attention.cost import block_slices, path_costs
from vit_rpe.masks import Causal, Dense, Exponential, Mask, Ones, Toeplitz


def toeplitz(n: int) -> Toeplitz:
    return Toeplitz(torch.ones(2 * n - 1, 2 * n - 1), (n, n))


def exponential(n: int) -> Exponential:
    return Exponential(torch.ones(1), torch.ones(1), (n, n))


@pytest.mark.parametrize(
    ("mask", "heads", "width", "path"),
    [
        (toeplitz(14), 12, 64, "explicit"),
        (toeplitz(56), 12, 64, "explicit"),
        (toeplitz(224), 1, 32, "product"),
        (exponential(14), 12, 64, "explicit"),
        (exponential(112), 1, 32, "scan"),
        (Ones(196), 12, 64, "scan"),
        (Causal(20_000), 1, 32, "scan"),
        (Dense(torch.ones(50, 50)), 1, 16, "explicit"),
    ],
)
def test_the_cheapest_path_is_chosen(mask: Mask, heads, width, path):
    assert choose_path(mask, heads, width, width) == path


def test_costs_can_be_given():
    mask = toeplitz(14)
    cheap_columns = PathCosts(product_work=0.0, column_entry=0.0)
    assert choose_path(mask, 1, 16, 16) == "explicit"
    assert choose_path(mask, 1, 16, 16, cheap_columns) == "product"


def test_values_play_no_part():
    first, second = toeplitz(40), Toeplitz(torch.randn(79, 79) * 1e6, (40, 40))
    assert path_costs(first, 3, 16, 16) == path_costs(second, 3, 16, 16)


def test_blocks_stay_within_the_grid():
    def blocks(*grid: int, terms: int = 1) -> tuple[int, ...]:
        return block_slices(Exponential(torch.ones(terms), torch.ones(terms), grid), 16, 17)

    assert blocks(5, 3) == () and blocks(1) == ()  # explicit
    for grid in ((200, 300), (9, 40, 50), (5000,)):
        assert 1 <= len(blocks(*grid)) <= len(grid)
        assert all(1 <= b < n for b, n in zip(blocks(*grid), grid, strict=False))
    assert blocks(5000, terms=4)[0] >= blocks(5000)[0]  # more states, larger blocks


def test_constants_are_measured_once_and_kept(tmp_path, monkeypatch):
    file, cpu = tmp_path / "new" / "costs.json", torch.device("cpu")
    monkeypatch.setenv(calibrate.SETTING, str(file))
    calibrate._device_costs.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        measured = calibrate.device_costs(cpu)
    assert measured != PathCosts() and min(asdict(measured).values()) > 0
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured again"))
    calibrate._device_costs.cache_clear()
    assert calibrate.device_costs(cpu) == measured
    monkeypatch.setenv(calibrate.SETTING, "default")
    assert calibrate.device_costs(cpu) == PathCosts()


def test_a_spoilt_file_of_constants_is_measured_anew(tmp_path, monkeypatch):
    file = tmp_path / "costs.json"
    file.write_text('{"cpu": [1, 2')
    monkeypatch.setenv(calibrate.SETTING, str(file))
    monkeypatch.setattr(calibrate, "measure", lambda _: PathCosts(multiply=7.0))
    calibrate._device_costs.cache_clear()
    assert calibrate.device_costs(torch.device("cpu")).multiply == 7.0


def test_a_model_settles_its_path():
    def path(**options) -> str:
        return timm.create_model("performer_rpe2d_tiny_patch16_224", depth=1, **options).path

    assert path() == "explicit" and path(rpe="none") == "scan" and path(path="product") == "product"
    model = timm.create_model("performer_rpe2d_tiny_patch16_224", depth=1, rpe="exponential")
    model.set_input_size((1792, 1792))
    assert model.path == "scan"
