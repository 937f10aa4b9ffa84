"""A condition on the figures of a step: a name, an operator and a number, or `nonfinite`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from vit_rpe.messages import nearest, shown

from ..record.steps import Outcome

NONFINITE = "nonfinite"
NAMES = ("loss", "grad_norm", "lr")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PARTS = re.compile(r"\s*(\w+)\s*([<>=!]+)\s*(\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """A condition that a step meets or not; without an operator: that it was skipped.

    As everywhere, NaN is neither above, below nor equal to a number; `nonfinite` finds it.
    """

    text: str
    name: str = ""
    compare: Callable[[float, float], bool] | None = None
    number: float = math.nan

    def holds(self, step: Outcome) -> bool:
        """Return whether a step meets the condition."""
        if self.compare is None:
            return step.skipped
        return self.compare(getattr(step, self.name), self.number)


def parse_condition(text: str) -> Condition:
    """Read a condition (`loss > 10`, `nonfinite`); ValueError says what is wrong with it."""
    if text.strip() == NONFINITE:
        return Condition(NONFINITE)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"wanted {NONFINITE}, or a name, an operator and a number as in 'loss > 10', got "
            f"{shown(text)}"
        )
    name, sign, number = parts.groups()
    if name not in NAMES:
        close = nearest(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise ValueError(f"no figure of a step is called {shown(name)}{close}")
    if sign not in OPERATORS:
        raise ValueError(f"no operator {shown(sign)}; there are {' '.join(OPERATORS)}")
    return Condition(f"{name} {sign} {number}", name, OPERATORS[sign], _number(number))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"wanted a number, got {shown(text)}") from None
    if math.isnan(value):
        raise ValueError(f"nothing can be compared with nan; {NONFINITE} finds such a step")
    return value
