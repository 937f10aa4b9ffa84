"""Conditions are read by hand: a name, an operator, a number, and nothing is evaluated."""

from __future__ import annotations

import math

import pytest

from vit_rpe.training.record.steps import Outcome
from vit_rpe.training.replay.condition import parse_condition


def step(loss: float = 2.0, skipped: bool = False) -> Outcome:
    return Outcome(7, loss, 0.5, 1e-3, skipped)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("loss > 1", True),
        ("loss>2", False),
        ("loss >= 2", True),
        (" loss <2.5e0 ", True),
        ("grad_norm <= 0.4", False),
        ("lr == 1e-3", True),
        ("lr != 0.001", False),
        ("loss < inf", True),
        ("nonfinite", False),
    ],
)
def test_a_condition_on_a_step(text, holds):
    assert parse_condition(text).holds(step()) is holds


def test_what_is_not_finite():
    assert parse_condition("nonfinite").holds(step(math.nan, skipped=True))
    assert not parse_condition("nonfinite").holds(step(math.inf))  # the scale of float16
    assert parse_condition("loss > 10").holds(step(math.inf))
    assert not parse_condition("loss > 10").holds(step(math.nan))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("loss", "as in 'loss > 10'"),
        ("", "wanted nonfinite"),
        ("loss > 1 or True", "wanted nonfinite"),
        ("los > 1", "nearest is 'loss'"),
        ("__import__ > 1", "there are loss, grad_norm, lr"),
        ("loss => 1", "no operator '=>'"),
        ("loss > ten", "wanted a number, got 'ten'"),
        ("loss > nan", "nonfinite finds"),
    ],
)
def test_what_cannot_be_read(text, part):
    with pytest.raises(ValueError) as error:
        parse_condition(text)
    assert part in str(error.value)
