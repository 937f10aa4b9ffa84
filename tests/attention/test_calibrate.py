"""Constants of the cost model: measured once, kept, and read only from files of constants."""

import json
import os
from dataclasses import asdict
from functools import partial

import pytest
import torch

from vit_rpe.attention import PathCosts, calibrate
from vit_rpe.attention.cost import default_costs


def test_constants_are_measured_once_and_kept(tmp_path, monkeypatch):
    file, cpu = tmp_path / "new" / "costs.json", torch.device("cpu")
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, str(file))
    calibrate._device_costs.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        measured = calibrate.device_costs(cpu)
    assert measured != PathCosts() and min(asdict(measured).values()) > 0
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured again"))
    calibrate._device_costs.cache_clear()
    assert calibrate.device_costs(cpu) == measured
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, "default")
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
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, str(file))
    with pytest.raises(ValueError, match=f"VIT_RPE_PATH_COSTS: .*notes.txt.*{message}"):
        measured()
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured for nothing"))
    assert calibrate.main() == 2 and file.read_text() == text


def test_a_file_that_cannot_be_a_file_of_constants(tmp_path, monkeypatch, measured):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, str(tmp_path / "pipe"))
    with pytest.raises(ValueError, match="VIT_RPE_PATH_COSTS: .*pipe: it is not a regular file"):
        measured()


@pytest.mark.parametrize(("text", "message"), SPOILT[1:])
def test_constants_in_the_cache_that_are_spoilt_are_measured_again(
    tmp_path, monkeypatch, measured, text, message
):
    monkeypatch.delenv(calibrate.PATH_COSTS_ENV)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibrate.costs_file().parent.mkdir()
    calibrate.costs_file().write_text(text)
    assert measured() == 7.0
    assert json.loads(calibrate.costs_file().read_text())  # and kept


def test_constants_of_other_devices_and_versions_are_kept(tmp_path, monkeypatch, measured):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"old": {"call": 3.0}, "gpu": asdict(PathCosts(call=9.0))}))
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, str(file))
    assert measured() == 7.0
    assert {"old", "gpu"} < set(json.loads(file.read_text()))
    file.write_text("")  # made by mktemp
    calibrate._device_costs.cache_clear()
    assert measured() == 7.0 and len(json.loads(file.read_text())) == 1


def test_a_device_that_is_not_here_has_the_defaults(monkeypatch):
    monkeypatch.setenv(calibrate.PATH_COSTS_ENV, "/nowhere/costs.json")
    monkeypatch.setattr(calibrate, "measure", lambda _: pytest.fail("measured"))
    for kind in ("meta", "cuda"):
        assert calibrate.device_costs(torch.device(kind)) == default_costs(kind)


def test_a_gpu_is_measured_with_much_work(monkeypatch):
    """A few heads would measure launches: the work of a call must be far above what it costs."""
    heads = {}

    def nanoseconds(path, mask, count, width):
        heads[path, mask.length] = count
        return 1e6

    monkeypatch.setattr(calibrate, "_nanoseconds", nanoseconds)
    monkeypatch.setattr(calibrate, "_toeplitz", partial(on_meta, calibrate._toeplitz))
    monkeypatch.setattr(calibrate, "_exponential", partial(on_meta, calibrate._exponential))
    calibrate.measure(torch.device("cuda"))
    assert heads["explicit", 784] == 256 and heads["product", 784] == heads["scan", 3136] == 64
    assert heads["explicit", 4] == 4


def on_meta(make, grid, device):
    """There is no such device here; nothing looks at the values."""
    return make(grid, torch.device("meta"))
