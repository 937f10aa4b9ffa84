import sys
from importlib import import_module

import pytest


@pytest.fixture(scope="module")
def tool():
    return import_module("tools.figures.masks")


def test_draws_a_png_into_a_new_folder(tool, tmp_path):
    path = tool.draw_masks((2, 3), tmp_path / "new" / "masks.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_weights_fit_the_shared_colour_scale(tool):
    for panel in [*tool._kinds(4, 5), *tool._heads(4, 5)]:
        matrix = panel.matrix()
        assert matrix.shape == (panel.mask.length, panel.mask.length), panel.title
        assert 0 <= matrix.min() and matrix.max() <= 1, panel.title


def test_the_marked_query_is_in_the_middle_of_the_last_grid(tool):
    queries = {panel.title.split("\n")[0]: panel.query() for panel in tool._kinds(4, 6)}
    assert queries["OffsetRPE"] == 2 * 6 + 3
    assert queries["Bordered"] == 2 + 2 * 6 + 3
    assert queries["BlockDiagonal"] == 2 * 6 + 2 * 3 + 1


@pytest.mark.parametrize("grid", [(0, 3), (3,), (100, 100)])
def test_a_wrong_grid_is_refused(tool, tmp_path, grid):
    with pytest.raises(ValueError, match="grid"):
        tool.draw_masks(grid, tmp_path / "masks.png")


def test_without_matplotlib_it_says_what_to_install(tool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install vit_rpe\[report\]"):
        tool.draw_masks((2, 3), tmp_path / "masks.png")


def test_the_command_line(tool, tmp_path, capsys):
    output = tmp_path / "masks.png"
    tool.main(["--grid", "1", "3", "--output", str(output)])
    assert output.exists() and str(output) in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"at least 1 token, got \(0, 3\)"):
        tool.main(["--grid", "0", "3"])
