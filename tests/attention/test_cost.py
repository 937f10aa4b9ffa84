import json
import os
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


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(calibrate, "measure", lambda _: PathCosts(multiply=7.0))
    calibrate._device_costs.cache_clear()
    yield lambda: calibrate.device_costs(torch.device("cpu")).multiply
    calibrate._device_costs.cache_clear()


def constants(**values) -> str:
    return json.dumps({calibrate._name(torch.device("cpu")): {**asdict(PathCosts()), **values}})


SPOILT = [
    ("meet at 9", "is no file of path costs"),
    ('{"cpu": [1, 2', "is no file of path costs"),
    ('{"cpu": [1, 2]}', "is no file of path costs"),
    ("[1]", "is no file of path costs"),
    ("[" * 99_999, "is no file of path costs"),
    (constants(multiply=float("nan")), "multiply is a positive number of nanoseconds, got nan"),
    (constants(call=-1e300), "call is a positive number of nanoseconds, got -1e[+]300"),
    (constants(call=0), "call is a positive number of nanoseconds, got 0"),
    (constants(call="1"), "call is a positive number of nanoseconds, got '1'"),
    (constants(call=float("inf")), "call is a positive number of nanoseconds, got inf"),
]


@pytest.mark.parametrize(("text", "message"), SPOILT)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    tmp_path, monkeypatch, measured, text, message
):
    file = tmp_path / "notes.txt"
    file.write_text(text)
    monkeypatch.setenv(calibrate.SETTING, str(file))
    with pytest.raises(ValueError, match=f"VIT_RPE_PATH_COSTS: .*notes.txt.*{message}"):
        measured()
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured for nothing"))
    assert calibrate.main() == 2 and file.read_text() == text


def test_a_file_that_cannot_be_a_file_of_constants(tmp_path, monkeypatch, measured):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv(calibrate.SETTING, str(tmp_path / "pipe"))
    with pytest.raises(ValueError, match="VIT_RPE_PATH_COSTS: .*pipe: it is not a regular file"):
        measured()


@pytest.mark.parametrize(("text", "message"), SPOILT[1:])
def test_constants_in_the_cache_that_are_spoilt_are_measured_anew(
    tmp_path, monkeypatch, measured, text, message
):
    monkeypatch.delenv(calibrate.SETTING)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibrate.costs_file().parent.mkdir()
    calibrate.costs_file().write_text(text)
    assert measured() == 7.0
    assert json.loads(calibrate.costs_file().read_text())  # and kept


def test_constants_of_other_devices_and_versions_are_kept(tmp_path, monkeypatch, measured):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"old": {"call": 3.0}, "gpu": asdict(PathCosts(call=9.0))}))
    monkeypatch.setenv(calibrate.SETTING, str(file))
    assert measured() == 7.0
    assert {"old", "gpu"} < set(json.loads(file.read_text()))
    file.write_text("")  # made by mktemp
    calibrate._device_costs.cache_clear()
    assert measured() == 7.0 and len(json.loads(file.read_text())) == 1


def test_a_model_settles_its_path():
    def path(**options) -> str:
        return timm.create_model("performer_rpe2d_tiny_patch16_224", depth=1, **options).path

    assert path() == "explicit" and path(rpe="none") == "scan" and path(path="product") == "product"
    model = timm.create_model("performer_rpe2d_tiny_patch16_224", depth=1, rpe="exponential")
    model.set_input_size((1792, 1792))
    assert model.path == "scan"
