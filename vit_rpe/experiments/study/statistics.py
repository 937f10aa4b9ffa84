"""Means with their intervals, of values and of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from vit_rpe.extras import import_extra

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """The mean of independent values; `deviation` and `margin` need two of them."""

    values: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of one value, with n - 1."""
        return stdev(self.values) if self.count > 1 else None

    @property
    def margin(self) -> float | None:
        """Half the width of Student's 95 % interval of the mean."""
        if self.deviation is None:
            return None
        return student_quantile(self.count - 1) * self.deviation / math.sqrt(self.count)

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.margin is None else (self.mean - self.margin, self.mean + self.margin)


def estimate(values: Sequence[float]) -> Estimate:
    return Estimate(tuple(values))


def student_quantile(freedom: int) -> float:
    """Return how many standard errors a two-sided 95 % interval reaches."""
    special = import_extra("scipy.special", "train", "an interval")
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
