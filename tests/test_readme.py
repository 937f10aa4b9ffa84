import re
from pathlib import Path

import pytest
import torch

from vit_rpe.data.making import digits, make_shards

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def run_examples(text: str, folder: Path, monkeypatch) -> dict:
    """All Python blocks of a text, in a folder that has the shards which they read."""
    monkeypatch.chdir(folder)
    make_shards(digits()["train"], "data/digits", "train")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    return names


def test_the_examples_of_data_run_as_written(tmp_path, monkeypatch):
    names = run_examples((ROOT / "docs" / "data.md").read_text(), tmp_path, monkeypatch)
    assert names["targets"].shape == (64, 10) and names["batch"].step == 3 * 22 - 1


def test_the_examples_of_gkat_run_as_written(tmp_path, monkeypatch):
    names = run_examples((ROOT / "docs" / "gkat.md").read_text(), tmp_path, monkeypatch)
    assert names["out"].shape == (30, 32) and names["logits"].shape == (30, 7)
    assert names["sketch"].shape == (30, 64) and names["walks"].draws == 4
    assert names["fresh"].shape == names["fixed"].shape == (30, 32)


def test_the_examples_of_graphs_run_as_written(tmp_path, monkeypatch):
    names = run_examples((ROOT / "docs" / "graphs.md").read_text(), tmp_path, monkeypatch)
    assert names["out"].shape == (2, 30, 8) and torch.isfinite(names["out"]).all()
    grad = names["attention"].log_lam.grad
    assert torch.isfinite(grad).all() and (grad != 0).all()


def test_the_examples_of_video_run_as_written(tmp_path, monkeypatch):
    names = run_examples((ROOT / "docs" / "video.md").read_text(), tmp_path, monkeypatch)
    assert names["features"].shape == (2, 192, 4, 7, 7) and names["stream"].num_frames == 8
    torch.testing.assert_close(names["logits"], names["model"](names["clip"]), rtol=1e-4, atol=1e-4)


def test_the_examples_run_as_written(tmp_path, monkeypatch):
    names = run_examples(README, tmp_path, monkeypatch)
    assert names["logits"].shape == (2, 10) and torch.isfinite(names["logits"]).all()
    assert names["so_far"].shape == (1, 5) and torch.isfinite(names["so_far"]).all()
    assert names["out"].shape == (8, 197, 128)
    assert torch.isfinite(names["out"]).all()
    assert names["batch"].images.shape == (64, 3, 32, 32)
    assert names["nodes"].shape == (30, 32) and torch.isfinite(names["nodes"]).all()
    for graph_output in (names["heat"], names["walked"]):
        assert graph_output.shape == (2, 30, 16) and torch.isfinite(graph_output).all()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """To a file that is there, and to a heading that it has."""
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing, f"{page.name}: {missing}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}
