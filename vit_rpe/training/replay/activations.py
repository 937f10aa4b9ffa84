"""Ranges of what the modules of a model give in forward passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Range:
    """The range of numbers that came by: of those that are finite, and how many are not."""

    low: float = math.inf
    high: float = -math.inf
    squares: float = 0.0
    finite: int = 0
    nonfinite: int = 0

    def add(self, values: Tensor) -> None:
        """Take in a tensor."""
        whole = values.isfinite()
        kept = values[whole].double()
        self.nonfinite += int(whole.numel() - kept.numel())
        if kept.numel():
            low, high = kept.aminmax()
            self.include(float(low), float(high), float(kept.square().sum()), kept.numel())

    def include(self, low: float, high: float, squares: float, count: int) -> None:
        """Take in numbers of which only these figures are known."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.squares, self.finite = self.squares + squares, self.finite + count

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan


@dataclass
class Activations:
    """The ranges of modules by name, in the order in which they first ended, and the first bad.

    Names are those in the model; the model itself is "model".
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    first_nonfinite: str | None = None

    def add(self, name: str, output: Any) -> None:
        """Take in what a module has given."""
        for values in _tensors(output):
            seen = self.ranges.setdefault(name, Range())
            seen.add(values)
            if seen.nonfinite and self.first_nonfinite is None:
                self.first_nonfinite = name

    @classmethod
    def joined(cls, parts: Iterable[Activations]) -> Activations:
        """Join those of several ranks."""
        whole = cls()
        for part in parts:
            whole.first_nonfinite = whole.first_nonfinite or part.first_nonfinite
            for name, seen in part.ranges.items():
                own = whole.ranges.setdefault(name, Range())
                own.include(seen.low, seen.high, seen.squares, seen.finite)
                own.nonfinite += seen.nonfinite
        return whole


@contextmanager
def measured(net: nn.Module) -> Iterator[Activations]:
    """Measure the forward passes of a model while this is entered, and change nothing in them.

    What blocks compute again in a backward pass is not counted twice.
    """
    found, inside = Activations(), [False]

    def begin(*_: Any) -> None:
        inside[0] = True

    def end(name: str, module: nn.Module, output: Any) -> None:
        if inside[0]:
            with torch.no_grad():
                found.add(name or "model", output)
        inside[0] = inside[0] and module is not net

    hooks = [net.register_forward_pre_hook(begin)]
    for name, module in net.named_modules():
        hooks.append(
            module.register_forward_hook(lambda m, _, output, name=name: end(name, m, output))
        )
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output.detach()
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
