"""The journey of one training step, and how often a run asks for its modality."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import vit_rpe
from tests.training.runs import make_data, write_recipe
from vit_rpe.training import Recipe, assemble, load_recipe, start_run

PACKAGE = Path(vit_rpe.__file__).parent
MOST_FILES = 20


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    data = make_data(tmp_path / "data")
    values: dict[str, Any] = {"mixup": 0.4, "reprob": 0.3, "device": "cpu", "workers": 0}
    return load_recipe(
        write_recipe(tmp_path / "a.yaml", data_dir=data, output=str(tmp_path), **values)
    )


def test_a_step_passes_few_files(recipe):
    """The second step of a run, as the first one fills caches."""
    trainer, seen = assemble(start_run(recipe)), set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen.add(path.relative_to(PACKAGE))

    with ExitStack() as stack:
        trainer.open_logs(stack)
        batches = trainer._batches()
        for step in range(2):
            if step:
                sys.setprofile(profile)
            try:
                trainer.advance(*next(batches))
            finally:
                sys.setprofile(None)
    rooms = [str(path) for path in sorted(seen) if path.parts[0] in ("data", "training")]
    assert 10 < len(rooms) <= MOST_FILES, rooms


def test_the_modality_is_asked_once_in_a_run(recipe, monkeypatch):
    from vit_rpe.training import run

    calls, modality_of = [], run.modality_of

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return modality_of(*args, **options)

    monkeypatch.setattr(run, "modality_of", counted)
    assemble(start_run(recipe))
    assert len(calls) == 1
