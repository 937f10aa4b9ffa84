"""The commands of README and docs, word for word and in their order, in one folder.

A block of shell commands is run as it stands, unless a comment before it says otherwise:

    <!-- run with ARGUMENTS: why -->   adds them to each call of train.py and `vit-rpe train`
    <!-- not run: why -->

`python X` and `vit-rpe X` run X in a process that is forked from one which has imported everything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.data.samples import encoded
from tests.data.video_samples import video
from tests.training.launch import launch
from vit_rpe.cli import main
from vit_rpe.inference import predict

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL)
MARK = re.compile(r"not run: \S.*|run with (?P<more>[^:]+): \S.*")


@dataclass(frozen=True)
class Block:
    page: str
    mark: str
    text: str

    @property
    def is_run(self) -> bool:
        return not self.mark.startswith("not run")

    def commands(self) -> list[list[str]]:
        found = MARK.fullmatch(self.mark)
        more = shlex.split(found["more"]) if found is not None and found["more"] else []
        commands = [shlex.split(line, comments=True) for line in self.text.splitlines()]
        return [words + (more if _trains(words) else []) for words in commands if words]


def _trains(words: list[str]) -> bool:
    return words[:2] in (["python", "train.py"], ["vit-rpe", "train"])


def blocks(page: Path) -> list[Block]:
    return [Block(page.name, m["mark"] or "", m["text"]) for m in BLOCK.finditer(page.read_text())]


ALL = [block for page in PAGES for block in blocks(page)]


def test_every_block_is_run_or_says_why_not():
    assert len(ALL) == sum(page.read_text().count("```sh\n") for page in PAGES) > 20
    for block in ALL:
        assert not block.mark or MARK.fullmatch(block.mark), block
        if block.is_run:
            assert all(words[0] in ("python", "vit-rpe") for words in block.commands()), block
    assert sum(block.is_run for block in ALL) >= 8


def run_command(folder: str, words: list[str]) -> tuple[int, str]:
    """`python FILE ARGUMENTS` or `vit-rpe ARGUMENTS` in a folder, as if it was typed there."""
    os.chdir(folder)
    shown = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            if words[0] == "vit-rpe":
                code = main(words[1:])
            else:
                sys.argv, sys.path[0] = words[1:], str(Path(words[1]).resolve().parent)
                runpy.run_path(words[1], run_name="__main__")
        except SystemExit as stop:
            code = stop.code
    return 0 if code is None else int(str(code) if str(code).isdigit() else 1), shown.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder that looks like a checkout, but keeps what commands write."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("train.py", "tools", "recipes"):
        (place / name).symlink_to(ROOT / name)
    (place / "docs").mkdir()
    (place / "photos").mkdir()
    for name in ("photo.jpg", "photos/one.jpg", "photos/two.png"):
        (place / name).write_bytes(encoded(len(name), Path(name).suffix[1:].replace("jpg", "jpeg")))
    (place / "clip.mp4").write_bytes(video(40))
    return place


@pytest.mark.slow
def test_the_commands_run_as_written_and_the_examples_after_them(folder, monkeypatch):
    for block in filter(lambda each: each.is_run, ALL):
        for words in block.commands():
            [(code, shown)] = launch(run_command, str(folder), words)
            assert code == 0, f"{block.page}: {' '.join(words)}\n{shown[-2000:]}"
    for made in ("runs/quickstart", "runs/short", "results/short/results.csv", "docs/masks.png"):
        assert (folder / made).exists(), made
    monkeypatch.chdir(folder)
    names: dict = {}
    for page in ("predict.md", "quickstart.md", "training.md"):
        text = (ROOT / "docs" / page).read_text()
        for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(example, names)
        assert names["name"] in list("0123456789")
    torch.testing.assert_close(names["same"], torch.from_numpy(names["logits"]))
    classifier = names["classifier"]
    shown = [next(predict(classifier, ["photo.jpg"], top_k=10)).guesses]
    logits = torch.from_numpy(names["logits"]).softmax(-1)[0]  # by the preprocessing of the page
    for guess in shown[0]:
        assert guess.probability == pytest.approx(logits[guess.index].item(), abs=1e-4)
