"""How often a run asks for its modality."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.runs import make_data, write_recipe
from vit_rpe.training import Recipe, assemble, load_recipe, start_run


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    data = make_data(tmp_path / "data")
    values: dict[str, Any] = {"mixup": 0.4, "reprob": 0.3, "device": "cpu", "workers": 0}
    return load_recipe(
        write_recipe(tmp_path / "a.yaml", data_dir=data, output=str(tmp_path), **values)
    )


def test_the_modality_is_asked_once_in_a_run(recipe, monkeypatch):
    from vit_rpe.training import run

    calls, modality_of = [], run.modality_of

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return modality_of(*args, **options)

    monkeypatch.setattr(run, "modality_of", counted)
    assemble(start_run(recipe))
    assert len(calls) == 1
