"""Intervals against tables and a simulation; paired differences against a calculation by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.experiments.study.studies import SMALL, plan, value_of
from vit_rpe.experiments.study.comparisons import rows_of
from vit_rpe.experiments.study.statistics import estimate, student_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (100, 1.9840)]
)
def test_quantiles_are_those_of_printed_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_an_interval_by_hand():
    found = estimate([1.0, 2.0, 6.0])
    assert found.mean == 3.0 and found.deviation == pytest.approx(7**0.5)
    assert found.margin == pytest.approx(4.30265 * (7 / 3) ** 0.5, rel=1e-5)
    assert estimate([4.0]).interval is None


def test_intervals_contain_the_truth_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(5.0, 2.0, (2000, 3))
    hits = sum(low <= 5.0 <= high for low, high in (estimate(list(d)).interval for d in draws))
    assert 0.93 < hits / 2000 < 0.97


def test_differences_are_paired_by_seed_and_averaged_over_the_other_factors(tmp_path):
    planned = plan(tmp_path)
    values = {(trial.levels, trial.seed): value_of(trial) for trial in planned.trials}
    rows = {
        (row.comparison.name, row.group): row.difference(values)
        for row in rows_of(planned.study, planned.trials)
    }
    by_hand = {
        ("gain", (("kernel", "relu"),)): (3.0, 2.0),
        ("gain", (("kernel", "square"),)): (5.0, 4.0),
        ("mean gain", ()): (4.0, 3.0),
    }
    assert {key: row.values for key, row in rows.items()} == by_hand


def test_a_seed_counts_only_if_all_of_its_trials_are_there(tmp_path):
    planned = plan(tmp_path)
    values = {(trial.levels, trial.seed): value_of(trial) for trial in planned.trials}
    del values[(("kernel", "square"), ("mask", "none")), 1]
    found = [row.difference(values) for row in rows_of(planned.study, planned.trials)]
    assert [each.values for each in found if each] == [(3.0, 2.0), (5.0,), (4.0,)]


def test_an_average_uses_the_seeds_that_all_its_settings_have(tmp_path):
    blocks = [
        {"levels": {"kernel": "relu", "mask": ["none", "offset"]}, "seeds": [0, 1, 2]},
        {"levels": {"kernel": "square", "mask": ["none", "offset"]}, "seeds": [1, 2, 3]},
    ]
    rows = rows_of(
        planned := plan(tmp_path, blocks=blocks).study, plan(tmp_path, blocks=blocks).trials
    )
    assert planned.seeds == SMALL["seeds"]
    assert [row.seeds for row in rows] == [(0, 1, 2), (1, 2, 3), (1, 2)]
