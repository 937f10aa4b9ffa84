import sys
from importlib import import_module

import pytest
import torch


@pytest.fixture(scope="module")
def tool():
    return import_module("tools.figures.graph_masks")


def test_draws_a_png_into_a_new_folder(tool, tmp_path):
    path = tool.draw(tmp_path / "new" / "graphs.png", walks=2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_papers_heat_maps_come_first(tool):
    adjacency, diffusion, walks, *_ = (panel.matrix() for panel in tool.panels())
    assert adjacency.equal(adjacency.mT) and set(adjacency.unique().tolist()) == {0.0, 1.0}
    exact = torch.matrix_exp(adjacency)
    torch.testing.assert_close(diffusion, exact / exact.max())
    torch.testing.assert_close(walks.diagonal(), torch.ones(len(walks)).double())  # alpha = 1
    assert (walks[adjacency == 1] > 0).all()


def test_the_spanning_tree_spans(tool):
    edges = tool.example_edges()
    tree = tool.spanning_tree(edges)
    assert tree.shape[1] == 2 * (int(edges.max()) + 1 - 1)
    assert set(map(tuple, tree.mT.tolist())) <= set(map(tuple, edges.mT.tolist()))


def test_without_networkx_it_says_what_to_install(tool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install vit_rpe\[graph,report\]"):
        tool.draw(tmp_path / "graphs.png")


def test_the_command_line(tool, tmp_path, capsys):
    output = tmp_path / "graphs.png"
    tool.main(["--walks", "1", "--output", str(output)])
    assert output.exists() and str(output) in capsys.readouterr().out
    with pytest.raises(SystemExit, match="num_walks must be at least 1, got 0"):
        tool.main(["--walks", "0"])
