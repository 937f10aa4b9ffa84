import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_examples_run_as_written():
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 10) and torch.isfinite(names["logits"]).all()
    assert names["out"].shape == (8, 197, 128)
    assert torch.isfinite(names["out"]).all()
    for graph_output in (names["heat"], names["walked"]):
        assert graph_output.shape == (2, 30, 16) and torch.isfinite(graph_output).all()


def test_links_lead_somewhere():
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)]
    missing = [x for x in links if x and "://" not in x and not (ROOT / x).exists()]
    assert not missing
