"""Optional dependencies that are not there: one error, which says what to install."""

from __future__ import annotations

import sys

import pytest

from vit_rpe.extras import MissingExtra, import_extra, require_extra
from vit_rpe.shipped import HERE


def test_a_module_that_is_there():
    assert import_extra("json", "graph", "reading JSON") is __import__("json")


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.part"])
def test_a_module_that_is_missing(module):
    with pytest.raises(MissingExtra) as raised:
        import_extra(module, "video", "decoding video files")
    wanted = "decoding video files needs no_such_module: pip install 'vit_rpe[video]'"
    assert str(raised.value) == wanted
    assert raised.value.name == "no_such_module"


def test_a_module_that_is_broken_says_why(monkeypatch, tmp_path):
    (tmp_path / "broken_module.py").write_text("raise ImportError('libx.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)
    with pytest.raises(MissingExtra, match=r"broken_module \(libx.so is missing\): pip install"):
        import_extra("broken_module", "graph", "walking")


@pytest.mark.parametrize(("room", "module"), [("data", "webdataset"), ("training", "accelerate")])
def test_a_room_that_cannot_be_used_says_so_first(room, module, monkeypatch):
    source = (HERE / room / "__init__.py").read_text()
    line = source[source.index("require_extra(") :].partition(")")[0] + ")"
    exec(line, {"require_extra": require_extra})
    monkeypatch.setitem(sys.modules, module, None)
    wanted = f"vit_rpe.{room} needs {module}: pip install 'vit_rpe\\[train\\]'"
    with pytest.raises(MissingExtra, match=wanted):
        exec(line, {"require_extra": require_extra})
